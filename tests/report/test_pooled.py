"""Several samples and several seeds, found in run folders."""

import json

import pytest

from seekling.evaluate.compare import summarize_samples
from seekling.evaluate.intervals import difference_of
from seekling.report.pooled import pooled_gains, read_pooled
from seekling.report.read import read_run
from tests.evaluate.episodes import evaluation, write_evaluations


def write_run(run, seed, recipe="steps = 4", **stages):
    write_evaluations(run, **stages)
    (run / "recipe.toml").write_text(f'name = "{run.name}"\nseed = {seed}\n[rl]\n{recipe}\n', encoding="utf-8")
    return run


def read(runs):
    return [read_run(run, has_episodes=False) for run in runs]


def test_runs_that_differ_in_their_seed_alone_are_seeds_of_one_system(tmp_path):
    runs = [
        write_run(tmp_path / "a", 0, rl="rrww", base="wwww"),
        write_run(tmp_path / "other", 1, "steps = 5", rl="rrrr", base="rrrr"),
        write_run(tmp_path / "b", 7, rl="rwrw"),
    ]
    found, problems = read_pooled(read(runs))
    assert problems == []
    (rl,) = found  # only the first has the base's evaluation
    assert (rl.policy, rl.runs, rl.seeds) == ("rl", (0, 2), (0, 7))
    assert (rl.summary.names, rl.summary.em_mean.value, rl.summary.pass_at_k[2].value) == (("a", "b"), 0.5, 0.75)


def test_a_run_from_before_a_setting_existed_is_a_seed_of_runs_that_have_it_at_its_default(tmp_path):
    runs = [write_run(tmp_path / "a", 0, rl="rr"), write_run(tmp_path / "b", 1, "steps = 4\ngroup_size = 8", rl="rw")]
    ((rl,), problems) = read_pooled(read(runs))
    assert (rl.seeds, problems) == ((0, 1), [])


def test_the_same_seed_twice_is_no_second_seed(tmp_path):
    runs = [write_run(tmp_path / name, 0, rl="rr") for name in "ab"]
    assert read_pooled(read(runs)) == ([], [])


def test_seeds_that_were_asked_different_questions_are_named_and_not_pooled(tmp_path):
    runs = [write_run(tmp_path / "a", 0, rl="rr"), write_run(tmp_path / "b", 1, rl="rrr")]
    found, problems = read_pooled(read(runs))
    assert found == []
    assert problems[0].startswith("eval-rl of 2 seeds cannot be put together: ")


def test_samples_of_a_run_are_read_back_and_a_damaged_file_is_named(tmp_path):
    summary = summarize_samples([(name, evaluation("rw", stage=f"eval-{name}")) for name in ("x-s1", "x-s2")])
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "x.json").write_text(json.dumps(summary.to_json()), encoding="utf-8")
    (tmp_path / "samples" / "y.json").write_text('{"names": ', encoding="utf-8")
    (tmp_path / "samples" / "z.json").write_text("[]", encoding="utf-8")
    (run,) = read([tmp_path])
    found, _ = read_pooled([run])
    assert [(each.policy, each.runs, each.seeds, each.summary) for each in found] == [("x", (0,), (), summary)]
    assert [problem for problem in run.problems if problem.startswith("samples/y.json is damaged")]
    assert "samples/z.json is damaged: expected an object." in run.problems


@pytest.mark.parametrize("recipe", ["", "seed = [", 'seed = "one"'])
def test_a_run_whose_seed_is_unknown_is_nobodys_seed(tmp_path, recipe):
    runs = [write_run(tmp_path / "a", 0, rl="r"), write_run(tmp_path / "b", 1, rl="r")]
    (runs[1] / "recipe.toml").write_text(recipe, encoding="utf-8")
    assert read_pooled(read(runs)) == ([], [])


def test_gains_over_seeds_have_one_difference_for_each_question(tmp_path):
    runs = [
        write_run(tmp_path / "a", 0, sft="rwww", rl="rrwf"),
        write_run(tmp_path / "b", 1, sft="wwww", rl="rrww"),
        write_run(tmp_path / "c", 2, sft="rwww", rl="rwww"),
    ]
    (gain,), problems = pooled_gains(read(runs))
    assert (problems, gain.runs, gain.kind) == ([], (0, 1, 2), "")
    # The failed episode and its partner are left out of both sides.
    assert [(rate.k, rate.n) for rate in (gain.first, gain.second)] == [(2, 11), (5, 11)]
    assert gain.second.value == pytest.approx((1 + 2 / 3) / 4)
    assert gain.difference == difference_of([1 / 3, 2 / 3, 0.0, 0.0])


def test_a_run_without_one_of_the_stages_is_named(tmp_path):
    assert pooled_gains(read([write_run(tmp_path / "a", 0, rl="rw")]))[0] == []
    assert "eval-sft.jsonl" in pooled_gains(read([tmp_path / "a"]))[1][0]
