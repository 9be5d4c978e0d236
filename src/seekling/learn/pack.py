"""Trajectories -> packed rows in which a shared prefix is computed once, for RL and SFT.

A row is a prefix tree of some trajectories, laid out as strands: a trajectory adds the tokens that it does not share
with those before it, and these attend to their path through the row. So activations, logits and their gradients are
those of the separate sequences up to rounding.

Shape letters: N packed tokens of a row, A trained tokens (one entry per trajectory and token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seekling.errors import DataError
from seekling.kernels.strands import Span, Strand
from seekling.types import Trajectory


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Input of one forward pass and where its losses are."""

    token_ids_N: np.ndarray
    position_ids_N: np.ndarray
    """(N,) depth in the tree, which is the position in the original sequence."""
    strands: tuple[Strand, ...]
    """Every token belongs to one; each attends to those before it, and to its own up to itself."""
    source_A: np.ndarray
    """(A,) index of the packed token whose output predicts the trained token."""
    target_A: np.ndarray
    """(A,) id of the trained token."""
    sequence_A: np.ndarray
    """(A,) which trajectory of the batch the entry belongs to."""
    logprobs_A: np.ndarray
    """(A,) its log-probability when it was sampled."""
    temperature_A: np.ndarray
    """(A,) float64: at which it was sampled."""

    def positions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The outputs that predict trained tokens, once for each temperature, however many trajectories part there.

        Returns:
            (U,) index of the packed token, (U,) float32 temperature, and (A,) which of the U an entry needs.
        """
        pairs = np.stack([self.source_A.astype(np.float64), self.temperature_A])
        pairs_2U, where_A = np.unique(pairs, axis=1, return_inverse=True)
        return pairs_2U[0].astype(np.int64), pairs_2U[1].astype(np.float32), where_A.reshape(-1)


def pack_rows(trajectories: Sequence[Trajectory], *, row_tokens: int) -> list[PackedRow]:
    """Pack trajectories, in any order, into rows of at most `row_tokens`, sharing common prefixes within a row.

    The rows' entries together are exactly the trained tokens. A trajectory is never cut: a longer one gets a row of its
    own. Those without a trained token are left out.

    Raises:
        DataError: actions were drawn greedily or from a truncated distribution, whose log-probabilities are not those
            of softmax(logits / temperature).
    """
    for each in trajectories:
        _check_drawn(each)
    paths = {n: t.token_ids_T.tolist() for n, t in enumerate(trajectories) if t.train_mask_T[1:].any()}
    rows: list[PackedRow] = []
    members: list[int] = []
    size = 0
    for index in sorted(paths, key=lambda index: paths[index]):
        # In sorted order the longest prefix shared with the row is the one shared with its last member.
        shared = _common_prefix(paths[members[-1]], paths[index]) if members else 0
        if members and size + len(paths[index]) - shared > row_tokens:
            rows.append(_row(members, paths, trajectories))
            members, size, shared = [], 0, 0
        members.append(index)
        size += len(paths[index]) - shared
    return [*rows, _row(members, paths, trajectories)] if members else rows


def _common_prefix(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((length for length, (a, b) in pairs if a != b), min(len(left), len(right)))


def _row(members: list[int], paths: dict[int, list[int]], trajectories: Sequence[Trajectory]) -> PackedRow:
    """Lay out the prefix tree of sorted trajectories."""
    token_ids: list[int] = []
    positions: list[int] = []
    strands: list[Strand] = []
    entries: list[tuple[np.ndarray, ...]] = []
    spans: list[Span] = []
    last: list[int] = []
    for index in members:
        path, trajectory = paths[index], trajectories[index]
        shared = _common_prefix(last, path)
        spans = _first_tokens(spans, shared)
        if shared < len(path):
            start = len(token_ids)
            strands.append(Strand(start, len(path) - shared, tuple(spans)))
            spans.append((start, start + len(path) - shared))
            token_ids += path[shared:]
            positions += range(shared, len(path))
        # Where each token of the trajectory stands in the row.
        nodes = np.concatenate([np.arange(*span) for span in spans])
        # A trained first token has nothing before it that could predict it.
        trained = np.flatnonzero(trajectory.train_mask_T[1:]) + 1
        sequence_A = np.full(len(trained), index, np.int64)
        temperature_A = np.full(len(trained), trajectory.temperature, np.float64)
        drawn = trajectory.token_ids_T[trained], sequence_A, trajectory.logprobs_T[trained], temperature_A
        entries.append((nodes[trained - 1], *drawn))
        last = path
    return PackedRow(
        np.asarray(token_ids, np.int64),
        np.asarray(positions, np.int64),
        tuple(strands),
        *map(np.concatenate, zip(*entries, strict=True)),
    )


def _check_drawn(trajectory: Trajectory) -> None:
    if trajectory.temperature <= 0 or trajectory.top_p < 1 or trajectory.min_p > 0:
        raise DataError(
            f"a trajectory was drawn with temperature = {trajectory.temperature:g}, top_p = {trajectory.top_p:g}, "
            f"min_p = {trajectory.min_p:g}; its gradient would be that of another distribution. Learn from episodes "
            "drawn with a temperature above 0, top_p = 1 and min_p = 0"
        )


def _first_tokens(spans: list[Span], count: int) -> list[Span]:
    """The spans of a path's first tokens."""
    kept: list[Span] = []
    for start, stop in spans:
        if count <= 0:
            break
        kept.append((start, min(stop, start + count)))
        count -= stop - start
    return kept
