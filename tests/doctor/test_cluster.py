"""What a run's own files say of its samplers, and what follows from it."""

from __future__ import annotations

import json

import pytest

from seekling.cli.main import main
from seekling.doctor.cluster import cluster_health
from seekling.errors import DataError
from seekling.scale.ledger import Ledger

CALM = {
    "stage": "rl",
    "sampler_0_tokens_per_s": 100.0,
    "sampler_1_tokens_per_s": 90.0,
    "samplers_idle_share": 0.1,
    "queue_depth": 0.5,
    "staleness": 0.0,
    "weights_write_s": 0.2,
    "weights_read_s": 0.3,
    "sample_s": 10.0,
    "learn_s": 5.0,
    "num_redispatched_groups": 0,
}


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        lines = [json.dumps({**CALM, "step": number, **row}) for number, row in enumerate(rows, 1)]
        (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"stage": "rl", "st']))  # it is being written
        return tmp_path

    return write


def test_the_last_steps_are_averaged_and_a_step_that_was_done_again_counts_once(write):
    run = write(
        {"queue_depth": 9.0}, {}, {"step": 2, "queue_depth": 1.5}, {"step": 3, "staleness": 2.0}, {"stage": "sft"}
    )
    health = cluster_health(run, last=2)
    assert (health.first_step, health.last_step) == (2, 3)
    assert (health.queue_depth, health.staleness, health.max_staleness) == (1.0, 1.0, 2)
    assert [each.tokens_per_s for each in health.samplers] == [100.0, 90.0]
    assert health.advice == []


def test_groups_are_told_apart_by_sampler_and_by_what_became_of_them(write):
    run = write({})
    ledger = Ledger(run / "ledger.jsonl")
    used, lost, late, out = (ledger.dispatch(1, group, sampler=group % 2, weights=1) for group in range(4))
    ledger.use(used, 1)
    ledger.drop(lost, "the sampler died")
    ledger.note("died", sampler=1, why="killed")
    ledger.use(late, 1)
    ledger.drop(late, "the run went on from an earlier step")
    first, second = cluster_health(run).samplers
    assert (first.num_groups, first.num_used, first.num_dropped, first.num_out, first.num_deaths) == (2, 1, 1, 0, 0)
    assert (second.num_groups, second.num_used, second.num_dropped, second.num_out, second.num_deaths) == (
        2,
        0,
        1,
        1,
        1,
    )
    assert cluster_health(run).reasons == {"the sampler died": 1, "the run went on from an earlier step": 1}
    assert cluster_health(run).advice == ["samplers 1 died: `ledger.jsonl` has when and why"]
    assert ledger.dispatch(1, 4, sampler=0, weights=1) == out + 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"learn_s": 10.1}, "more scale.learner_ranks help"),
        ({"samplers_idle_share": 0.3}, "more rl.questions_per_step"),
        ({"queue_depth": 2.0}, "more scale.num_samplers"),
        ({"weights_read_s": 0.9}, "a faster disk for scale.weights_dir"),
        ({"sampler_1_tokens_per_s": 49.0}, "sampler 1 is far slower"),
    ],
)
def test_what_stands_out_brings_one_piece_of_advice(write, row, words):
    (advice,) = cluster_health(write(row)).advice
    assert words in advice


def test_a_run_in_one_process_is_told_what_is_missing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"stage": "rl", "step": 1, "loss": 0.5}\n')
    for run in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=r'scale\.engine = "ray"'):
            cluster_health(run)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_command_says_the_same_to_people_and_programs(write, capsys, flags):
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--cluster", str(write({"samplers_idle_share": 0.5})), *flags])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    if flags:
        document = json.loads(output)
        assert document["samplers"][1]["tokens_per_s"] == 90.0
        assert "more rl.questions_per_step" in document["advice"][0]
    else:
        assert "samplers idle: 50% of the time of rollouts; 0.5 groups in the queue" in output
        assert "weights: written in 0.20 s, read in 0.30 s" in output
