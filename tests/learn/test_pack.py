"""Packed rows: what is shared, what is covered, and that nothing sees what it should not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.errors import DataError
from seekling.learn.pack import Strand, pack_rows
from tests.learn.models import trajectory


def test_a_shared_prefix_is_packed_once():
    prompt = list(range(10, 20))
    batch = [trajectory([*prompt, 20 + n, 30, 31], [0] * 10 + [1, 1, 1]) for n in range(4)]
    (row,) = pack_rows(batch, row_tokens=100)
    assert row.token_ids_N.tolist() == [*prompt, 20, 30, 31, 21, 30, 31, 22, 30, 31, 23, 30, 31]
    assert row.position_ids_N.tolist() == [*range(10), *([10, 11, 12] * 4)]
    assert row.strands == (
        Strand(0, 13, ()),
        Strand(13, 3, ((0, 10),)),
        Strand(16, 3, ((0, 10),)),
        Strand(19, 3, ((0, 10),)),
    )
    # All four first actions are predicted by the prompt's last token, each other by its own predecessor.
    assert row.source_A.tolist() == [9, 10, 11, 9, 13, 14, 9, 16, 17, 9, 19, 20]
    assert row.target_A.tolist() == [20, 30, 31, 21, 30, 31, 22, 30, 31, 23, 30, 31]
    assert row.sequence_A.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert row.logprobs_A.tolist() == [-1.0] * 12
    assert row.logprobs_A.dtype == np.float32


def test_a_position_is_scored_once_for_each_temperature():
    batch = [trajectory([10, 20 + n, 30], [0, 1, 1]) for n in range(3)]
    batch = [replace(each, temperature=warmth) for each, warmth in zip(batch, (0.7, 1.15, 0.7), strict=True)]
    (row,) = pack_rows(batch, row_tokens=100)
    source_U, temperature_U, where_A = row.positions()
    assert source_U.tolist() == [0, 0, 1, 3, 5]
    assert temperature_U.tolist() == np.float32([0.7, 1.15, 0.7, 1.15, 0.7]).tolist()
    assert source_U[where_A].tolist() == row.source_A.tolist()
    assert temperature_U[where_A].tolist() == row.temperature_A.astype(np.float32).tolist()


@pytest.mark.parametrize("drawn", [{"temperature": 0.0}, {"top_p": 0.95}, {"min_p": 0.01}])
def test_what_was_drawn_from_another_distribution_is_not_learned_from(drawn):
    batch = [trajectory([5, 6], [0, 1]), replace(trajectory([5, 7], [0, 1]), **drawn)]
    name, value = next(iter(drawn.items()))
    with pytest.raises(DataError, match=f"{name} = {value:g}.* would be that of another distribution"):
        pack_rows(batch, row_tokens=100)


FIRST = st.sampled_from([[], list(range(100, 120))])
TRAJECTORIES = FIRST.flatmap(
    lambda first: st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=14).map(
            lambda pairs: trajectory(
                [*first, *(token for token, _ in pairs)], [*(0 for _ in first), *(mask for _, mask in pairs)]
            )
        ),
        max_size=12,
    )
)


@given(TRAJECTORIES, st.integers(1, 60))
def test_entries_are_exactly_the_trained_tokens_each_seeing_exactly_its_past(batch, row_tokens):
    covered = []
    for row in pack_rows(batch, row_tokens=row_tokens):
        starts = [strand.start for strand in row.strands]
        sizes = [strand.length for strand in row.strands]
        assert starts == np.cumsum([0, *sizes])[:-1].tolist()
        assert sum(sizes) == len(row.token_ids_N) == len(row.position_ids_N)
        for source, target, sequence in zip(row.source_A, row.target_A, row.sequence_A, strict=True):
            seen = seen_by(row, source)
            assert row.position_ids_N[seen].tolist() == list(range(len(seen)))
            assert row.token_ids_N[seen].tolist() == batch[sequence].token_ids_T[: len(seen)].tolist()
            assert batch[sequence].token_ids_T[len(seen)] == target
            covered.append((int(sequence), len(seen)))
    expected = [
        (index, place) for index, each in enumerate(batch) for place in np.flatnonzero(each.train_mask_T) if place
    ]
    assert sorted(covered) == sorted(expected)


def seen_by(row, node):
    """Tokens that a token of the row attends to, in order."""
    strand = next(strand for strand in reversed(row.strands) if strand.start <= node)
    return np.concatenate([*(np.arange(*span) for span in strand.before), np.arange(strand.start, node + 1)])


@given(TRAJECTORIES, st.integers(1, 60))
def test_rows_hold_each_prefix_once_and_keep_to_their_size(batch, row_tokens):
    for row in pack_rows(batch, row_tokens=row_tokens):
        members = sorted(set(row.sequence_A.tolist()))
        longest = max(len(batch[index].token_ids_T) for index in members)
        assert len(row.token_ids_N) <= row_tokens or (len(members) == 1 and len(row.token_ids_N) == longest)
        prefixes = [tuple(row.token_ids_N[seen_by(row, node)].tolist()) for node in range(len(row.token_ids_N))]
        assert len(set(prefixes)) == len(prefixes)
