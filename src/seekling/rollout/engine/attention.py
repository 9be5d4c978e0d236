"""Attention over cache slots in transformers' registry: `kernels.slots` behind the interface of its layers.

Shape letters: H query heads, C key/value heads, N packed tokens, D head dimension.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import AttentionInterface

from seekling.kernels.slots import AttentionPlan, attend_slots

SLOT_ATTENTION = "seekling_slots"


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: AttentionPlan,
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Write the new keys and values into their slots and attend over them.

    Args:
        module: the attention layer; `layer_idx` names its cache.
        query: (1, H, N, D), rotary embedding applied.
        key: (1, C, N, D), rotary embedding applied.
        value: (1, C, N, D).
        attention_mask: ignored, the plan knows the lengths.
        plan: what the packed tokens are.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D) and None, as transformers expects.
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    return attend_slots(query[0], key[0], value[0], layer, plan, scaling).unsqueeze(0), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
