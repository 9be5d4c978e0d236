"""Causal attention of many new tokens at once, block by block of the path that they end.

No pair of tokens that may not attend is computed outside the blocks on the diagonal, scores never exist for more than
one block, and all matrix shapes are multiples of a block, so a processor needs few kernels. The sampler's prefill and
the learner's packed rows share it.

Shape letters: H query heads, C key/value heads, N tokens that a tensor holds, T tokens of a path, B tokens of a block,
R = B * H / C queries of a block that share a key/value head, K tokens up to the end of a block, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

BLOCK = 128


class Path:
    """The last tokens of a sequence, whose queries are at hand, and the keys and values of all of it.

    Args:
        query_HND: queries, those of the path side by side.
        key_CTD: of the path from its beginning, up to a whole block or more; what is behind its end is never seen.
        value_CTD: likewise; finite throughout.
        start: first of the path's queries among the N.
        length: number of queries.
        num_before: tokens of the path before them.
        scaling: factor on the scores.
    """

    def __init__(
        self,
        query_HND: Tensor,
        key_CTD: Tensor,
        value_CTD: Tensor,
        *,
        start: int,
        length: int,
        num_before: int,
        scaling: float,
    ) -> None:
        self.query_HND, self.key_CTD, self.value_CTD = query_HND, key_CTD, value_CTD
        self.start, self.length, self.num_before, self.scaling = start, length, num_before, scaling

    def blocks(self) -> Iterator[Block]:
        """Those that hold queries."""
        for number in range(self.num_before // BLOCK, -(-(self.num_before + self.length) // BLOCK)):
            yield Block(self, number)

    def attend(self, output_HND: Tensor) -> None:
        """Write the attention's output to the places of the queries."""
        for block in self.blocks():
            block.write(output_HND, torch.bmm(block.weights_CRK, block.value_CKD))


class Block:
    """Queries of one block of a path, and how much they attend to what."""

    def __init__(self, path: Path, number: int) -> None:
        first = number * BLOCK
        self.end = first + BLOCK
        begin, stop = max(first, path.num_before), min(self.end, path.num_before + path.length)
        self._inside = slice(begin - first, stop - first)
        shift = path.start - path.num_before
        self._among_N = slice(begin + shift, stop + shift)
        self._num_kv_heads = path.key_CTD.shape[0]
        self.key_CKD, self.value_CKD = path.key_CTD[:, : self.end], path.value_CTD[:, : self.end]
        self.query_CRD = self.read(path.query_HND).mul_(path.scaling)
        scores_CRK = torch.bmm(self.query_CRD, self.key_CKD.transpose(1, 2))
        future_BB = _future(scores_CRK.dtype, scores_CRK.device)
        scores_CRK.view(self._num_kv_heads, -1, BLOCK, self.end)[..., first:] += future_BB
        self.weights_CRK = scores_CRK.softmax(-1)

    def read(self, tensor_HND: Tensor) -> Tensor:
        """(C, R, D) of the block's tokens; 0 where it reaches beyond the queries."""
        num_heads, _, depth = tensor_HND.shape
        block_HBD = tensor_HND.new_zeros((num_heads, BLOCK, depth))
        block_HBD[:, self._inside] = tensor_HND[:, self._among_N]
        return block_HBD.view(self._num_kv_heads, -1, depth)

    def write(self, tensor_HND: Tensor, block_CRD: Tensor) -> None:
        """Put what belongs to the queries into their places."""
        block_HBD = block_CRD.view(tensor_HND.shape[0], BLOCK, -1)
        tensor_HND[:, self._among_N] = block_HBD[:, self._inside]


@cache
def _future(dtype: torch.dtype, device: torch.device) -> Tensor:
    """(B, B) -inf where a key comes after the query."""
    with torch.inference_mode(False):  # serves training too
        return torch.full((BLOCK, BLOCK), float("-inf"), dtype=dtype, device=device).triu_(1)
