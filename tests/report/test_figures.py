"""What figures show, and that they are drawn; the drawing is skipped where matplotlib is not installed."""

import builtins
import dataclasses
import json

import pytest

from seekling.errors import DataError, MissingExtraError
from seekling.evaluate.behaviour_rates import first_change
from seekling.report.figures import BarFigure, CurveFigure, StackFigure, figures_of, write_figures
from seekling.report.read import read_run
from tests.evaluate.episodes import evaluation, write_episodes, write_evaluations


@pytest.fixture
def folder(tmp_path):
    folder = write_evaluations(tmp_path / "_a $run", base="wwwf", rl="rrrw")
    rows = [{"stage": "sft", "step": 1, "loss": 2.0}, {"stage": "sft", "step": 2, "loss": None}]
    rows += [{"stage": "rl", "step": step, "reward_mean": step / 4, "em_mean": 0.5} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return with_steps(folder, {1: "rrww", 2: "rrww"})


def with_steps(folder, letters):
    """RL episodes of some steps."""
    steps = [dataclasses.replace(each, step=step) for step in letters for each in evaluation(letters[step], stage="rl")]
    write_episodes(folder, "rl", steps)
    return folder


def test_a_finished_sft_has_an_axis_in_epochs_and_an_unfinished_one_none(folder):
    (folder / "recipe.toml").write_text("[sft]\nepochs = 4\n", encoding="utf-8")
    (folder / "progress.json").write_text('{"done": ["sft"]}', encoding="utf-8")
    figures = {figure.name: figure for figure in figures_of([read_run(folder)])}
    (loss,), (accuracy,) = figures["sft_loss"].charts, figures["rl_accuracy"].charts
    assert (loss.steps_per_epoch, accuracy.steps_per_epoch) == (0.5, None)
    assert (accuracy.title, [line.name for line in accuracy.lines]) == ("training accuracy (exact match)", ["EM"])
    (folder / "progress.json").write_text('{"done": []}', encoding="utf-8")
    assert figures_of([read_run(folder)])[0].charts[0].steps_per_epoch is None


def test_every_number_of_a_run_has_its_figure(folder):
    figures = {figure.name: figure for figure in figures_of([read_run(folder)])}
    learning = ["sft_loss", "rl_accuracy", "sft", "rl_reward", "rl_behaviours"]
    assert list(figures) == [*learning, "accuracy", "behaviours", "errors"]
    assert {type(figure) for figure in figures.values()} == {CurveFigure, BarFigure, StackFigure}
    (reward,) = figures["rl_reward"].charts
    assert [(line.name, line.ys) for line in reward.lines] == [("reward", (0.25, 0.5, 0.75)), ("EM", (0.5, 0.5, 0.5))]
    assert figures["sft"].charts[0].lines[0].ys == (2.0, None)
    accuracy = figures["accuracy"]
    assert accuracy.names == ("base (0/3)", "rl (3/4)")
    ((_, rates),) = accuracy.series
    assert [rate.value for rate in rates] == [0.0, 0.75]
    assert figures["errors"].parts == (
        ("right", (0, 3)),
        ("not_retrieved", (3, 1)),
        ("infrastructure", (1, 0)),
    )
    memory = next(chart for chart in figures["rl_behaviours"].charts if chart.title == "answer from memory")
    assert memory.lines[0].ys == (0.5, 0.5)
    assert memory.lines[0].low[0] < 0.5 < memory.lines[0].high[0]


def test_where_a_behaviour_appears_or_goes_is_marked(folder):
    assert first_change([]) is None
    with_steps(folder, {1: "w" * 20, 2: "w" * 18 + "rr", 3: "r" * 20, 4: "r" * 20})
    curves = next(figure for figure in figures_of([read_run(folder)]) if figure.name == "rl_behaviours")
    marks = {chart.title: chart.changes_at for chart in curves.charts}
    assert marks["answer from memory"] == 3


def test_several_runs_share_axes_and_runs_of_one_name_are_told_apart(folder):
    run = read_run(folder)
    figures = {figure.name: figure for figure in figures_of([run, run])}
    assert [line.name for line in figures["sft_loss"].charts[0].lines] == ["_a $run", "_a $run (2)"]
    assert {"rl_behaviours-_a_run", "rl_behaviours-_a_run_2_"} < set(figures)


def test_a_run_with_nothing_to_draw_is_refused(tmp_path):
    (tmp_path / "recipe.toml").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="nothing to draw"):
        figures_of([read_run(tmp_path)])


def test_without_matplotlib_the_error_names_the_command_that_installs_it(folder, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'seekling\[figures\]'"):
        write_figures([read_run(folder)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_each_figure_is_drawn_as_png_and_svg_and_is_the_same_every_time(folder, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'seekling[figures]'")
    run = read_run(folder)
    written = write_figures([run, run], tmp_path / "one")
    assert {path.suffix for path in written} == {".png", ".svg"}
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(path.name for path in written)
    for path in written:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") if path.suffix == ".png" else b"</svg>" in data
    svg = (tmp_path / "one" / "rl_reward.svg").read_text(encoding="utf-8")
    assert "_a $run (2)" in svg
    write_figures([run, run], tmp_path / "two")
    for path in written:
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()
