"""What every stack is given: one environment per process, episodes by text, rows that are questions again."""

import asyncio
import multiprocessing

import pyarrow.parquet as pq
import pytest

from seekling.corpus.questions import read_questions
from seekling.errors import DataError, InfrastructureError
from seekling.retrieval.library import Library
from seekling.stacks.environment import TextEpisode, open_environment, open_row
from seekling.types import StopReason
from tests.experts.village import SINGLE
from tests.patience import FAILS_AFTER_S


def reward_of(recipe, out, answer):
    """Play one episode; a function of its own for other processes."""
    episode = TextEpisode(open_environment(recipe, out=out), SINGLE)
    assert "1612" in episode.step("<search> Alder Mill </search>").observation.content
    return episode.step(f"<answer> {answer} </answer>").reward.total


def test_episodes_run_at_once_in_threads_of_an_asyncio_program(village):
    async def together():
        plays = (asyncio.to_thread(reward_of, str(village), "", str(1612 + number % 2)) for number in range(12))
        return await asyncio.gather(*plays)

    assert asyncio.run(together()) == [1.0, 0.0] * 6
    assert open_environment(str(village)) is open_environment(str(village))


def test_processes_that_open_a_new_folder_at_once_build_one_index(village, tmp_path):
    recipe, out = str(village.parent / "village.toml"), str(tmp_path / "fresh")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        rewards = [pool.apply_async(reward_of, (recipe, out, answer)) for answer in ("1612", "1613", "1612")]
        assert [each.get(FAILS_AFTER_S) for each in rewards] == [1.0, 0.0, 1.0]


def test_a_turn_is_read_up_to_its_stop_and_a_cut_one_ends_the_episode(village):
    environment = open_environment(str(village))
    step = TextEpisode(environment, SINGLE).step("<answer> 1612 </answer> <search> what", is_cut=True)
    assert (step.episode.stop_reason, step.reward.total, step.metrics["em"]) == (StopReason.ANSWERED, 1.0, 1.0)
    cut = TextEpisode(environment, SINGLE).step("<answer> 1612", is_cut=True)
    assert (cut.episode.stop_reason, cut.reward.total, cut.observation) == (StopReason.MAX_TOKENS, 0.0, None)


def test_a_search_that_fails_is_an_error_with_a_type_and_no_reward(village, monkeypatch):
    def broken(*arguments, **named):
        raise InfrastructureError("the search server is gone")

    monkeypatch.setattr(Library, "search", broken)
    with pytest.raises(InfrastructureError, match="the search server is gone"):
        TextEpisode(open_environment(str(village)), SINGLE).step("<search> Alder Mill </search>")


def test_rows_are_the_questions_again_for_stacks_and_for_us(village):
    environment = open_environment(str(village))
    questions = environment.world().train
    rows = pq.read_table(village / "train.parquet").to_pylist()
    assert [open_row(row["extra_info"])[1] for row in rows] == questions
    assert open_row(rows[0]["extra_info"], recipe=str(village))[0] is environment
    wanted = [(each.key, each.question, each.answers) for each in questions]
    assert [(each.key, each.question, each.answers) for each in read_questions(village / "train.parquet")] == wanted
    for row in ({"index": "3"}, None):
        with pytest.raises(DataError, match="seekling data parquet"):
            open_row(row)
