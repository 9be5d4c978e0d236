"""Trajectories -> packed rows in which a shared prefix is computed once.

All episodes of a batch share their instructions; those of a group share the question too, often the first search and
its passages. A row begins with what its whole batch shares, once; all else of the row attends to it. Behind it stand
blocks, side by side without padding: a block is the prefix tree of what is left of some trajectories, flattened; each
token attends to its ancestors only. So activations, logits and their gradients are those of the separate sequences up
to rounding. SFT uses the same rows.

Shape letters: N packed tokens of a row, M tokens of one block, A trained tokens (one entry per trajectory and token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seekling.types import Trajectory

MIN_PREFIX_TOKENS = 16
"""A shorter common prefix of a batch is left to the blocks."""
PAIRS_PER_TOKEN = 2_000
"""So many pairs of tokens that attend, or are masked, inside a block cost what the rest of the model costs for a token
(docs/LOG.md): what decides whether sharing a prefix is worth a larger block."""


@dataclass(frozen=True, slots=True)
class Block:
    """One flattened prefix tree inside a row; all of it attends to the row's prefix, and to nothing else outside."""

    start: int
    visible_MM: np.ndarray
    """(M, M) bool: row token may attend to column token (itself or an ancestor)."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Input of one forward pass and where its losses are."""

    token_ids_N: np.ndarray
    position_ids_N: np.ndarray
    """(N,) depth in the tree, which is the position in the original sequence."""
    num_prefix: int
    """Tokens at the beginning that every trajectory of the row starts with; no block has them."""
    blocks: tuple[Block, ...]
    source_A: np.ndarray
    """(A,) index of the packed token whose output predicts the trained token."""
    target_A: np.ndarray
    """(A,) id of the trained token."""
    sequence_A: np.ndarray
    """(A,) which trajectory of the batch the entry belongs to."""
    logprobs_A: np.ndarray
    """(A,) its log-probability when it was sampled."""


@dataclass(slots=True)
class _Tree:
    """A prefix tree in insertion order: a parent always stands before its children."""

    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    children: dict[tuple[int, int], int]

    @staticmethod
    def empty() -> _Tree:
        return _Tree([], [], [], {})

    def add(self, token_ids: Sequence[int]) -> list[int]:
        """Insert a path and return its nodes, one per token."""
        nodes, parent = [], -1
        for depth, token_id in enumerate(token_ids):
            node = self.children.get((parent, token_id))
            if node is None:
                node = len(self.token_ids)
                self.children[parent, token_id] = node
                self.token_ids.append(token_id)
                self.parents.append(parent)
                self.depths.append(depth)
            nodes.append(node)
            parent = node
        return nodes

    def visible(self) -> np.ndarray:
        size = len(self.token_ids)
        visible_MM = np.zeros((size, size), np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                visible_MM[node] = visible_MM[parent]
            visible_MM[node, node] = True
        return visible_MM


def pack_rows(trajectories: Sequence[Trajectory], *, row_tokens: int) -> list[PackedRow]:
    """Pack trajectories into rows of about `row_tokens`, sharing common prefixes inside blocks.

    A trajectory is never cut: one that is longer than `row_tokens` gets a row of its own. Trajectories without a
    trained token contribute nothing and are left out.

    Args:
        trajectories: B of them; the order does not matter.
        row_tokens: a row is closed before it would exceed this.

    Returns:
        Rows whose entries together are exactly the trained tokens of the batch.
    """
    trained = {index: np.flatnonzero(t.train_mask_T[1:]) + 1 for index, t in enumerate(trajectories)}
    paths = {index: trajectories[index].token_ids_T.tolist() for index, places in trained.items() if places.size}
    order = sorted(paths, key=lambda index: paths[index])
    if not order:
        return []
    # Of sorted paths, what the first and the last share is shared by all. Trained tokens stay in the blocks.
    num_prefix = (
        min(_common_prefix(paths[order[0]], paths[order[-1]]), *(int(trained[index][0]) for index in order))
        if len(order) > 1
        else 0
    )
    prefix = paths[order[0]][:num_prefix] if num_prefix >= MIN_PREFIX_TOKENS else []
    rests = {index: path[len(prefix) :] for index, path in paths.items()}
    rows: list[PackedRow] = []
    open_blocks: list[list[int]] = []
    open_tokens = len(prefix)
    for members, size in _blocks(order, rests, limit=max(1, row_tokens - len(prefix))):
        if open_blocks and open_tokens + size > row_tokens:
            rows.append(_row(prefix, open_blocks, rests, trajectories))
            open_blocks, open_tokens = [], len(prefix)
        open_blocks.append(members)
        open_tokens += size
    rows.append(_row(prefix, open_blocks, rests, trajectories))
    return rows


def _blocks(order: list[int], paths: dict[int, list[int]], *, limit: int) -> list[tuple[list[int], int]]:
    """Cut the sorted trajectories into runs whose prefix tree stays within the limit, with the size of each tree."""
    blocks: list[tuple[list[int], int]] = []
    members: list[int] = []
    size = 0
    for index in order:
        # In sorted order the longest prefix shared with the tree is the one shared with the last path.
        shared = _common_prefix(paths[members[-1]], paths[index]) if members else 0
        new = len(paths[index]) - shared
        # Joined, each new token is compared with the whole tree, and the tree with it.
        worth_joining = 2 * (size - shared) * new <= PAIRS_PER_TOKEN * shared
        if members and (size + new > limit or not worth_joining):
            blocks.append((members, size))
            members, size, new = [], 0, len(paths[index])
        members.append(index)
        size += new
    if members:
        blocks.append((members, size))
    return blocks


def _common_prefix(left: list[int], right: list[int]) -> int:
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length


def _row(
    prefix: list[int], blocks: list[list[int]], paths: dict[int, list[int]], trajectories: Sequence[Trajectory]
) -> PackedRow:
    """Lay out a row; `paths` are the trajectories' tokens after the prefix."""
    num_prefix = len(prefix)
    token_ids = list(prefix)
    positions = list(range(num_prefix))
    packed: list[Block] = []
    sources, targets, sequences, logprobs = [], [], [], []
    for members in blocks:
        tree, start = _Tree.empty(), len(token_ids)
        for index in members:
            # Where each token of the trajectory stands in the row.
            nodes = np.asarray([*range(-num_prefix, 0), *tree.add(paths[index])], np.int64)
            nodes += np.where(nodes < 0, num_prefix, start)
            trajectory = trajectories[index]
            # A trained first token has nothing before it that could predict it.
            trained = np.flatnonzero(trajectory.train_mask_T[1:]) + 1
            sources.append(nodes[trained - 1])
            targets.append(trajectory.token_ids_T[trained])
            sequences.append(np.full(len(trained), index, np.int64))
            logprobs.append(trajectory.logprobs_T[trained])
        token_ids += tree.token_ids
        positions += [num_prefix + depth for depth in tree.depths]
        packed.append(Block(start, tree.visible()))
    return PackedRow(
        np.asarray(token_ids, np.int64),
        np.asarray(positions, np.int64),
        num_prefix,
        tuple(packed),
        np.concatenate(sources),
        np.concatenate(targets),
        np.concatenate(sequences),
        np.concatenate(logprobs),
    )
