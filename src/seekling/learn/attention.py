"""The attention of packed rows in transformers' registry: `kernels.strands` behind the interface of its layers.

Shape letters: H query heads, C key/value heads, N packed tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from transformers import AttentionInterface

from seekling.kernels.strands import Strand, attend_strands

STRAND_ATTENTION = "seekling_strands"


def strand_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    strands: Sequence[Strand],
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend along paths.

    Args:
        module: the attention layer, unused.
        query: (1, H, N, D).
        key: (1, C, N, D).
        value: (1, C, N, D).
        attention_mask: ignored, the strands say it all.
        strands: of the row; tokens that belong to none are padding, their output is 0.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D) and None, as transformers expects.
    """
    output_HND = attend_strands(query[0], key[0], value[0], strands, scaling)
    return output_HND.transpose(0, 1).unsqueeze(0), None


AttentionInterface.register(STRAND_ATTENTION, strand_attention)
