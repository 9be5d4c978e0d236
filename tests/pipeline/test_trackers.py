"""Trackers write what `metrics.jsonl` says: real event files, a real offline run, a clear word where one is missing."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from seekling.config import build_recipe
from seekling.errors import MissingExtraError
from seekling.pipeline.stages import run_recipe
from seekling.pipeline.trackers import open_trackers
from tests.pipeline.runs import QuietReporter, rows, village_recipe


def needs(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the extra {package} is not installed")


def recipe_to(*names, **fields):
    return build_recipe({"name": "tracked", "tracking": {"to": list(names), **fields}})


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_every_metric_of_a_run(tmp_path, tiny_model_dir):
    needs("tensorboard")
    recipe = village_recipe(
        tmp_path / "village",
        tiny_model_dir,
        sft={"epochs": 3},
        rl={"steps": 0},
        eval={"stages": ["sft"]},
        tracking={"to": ["tensorboard"]},
    )
    run = tmp_path / "run"
    run_recipe(recipe, run, QuietReporter())
    found = scalars(run / "tensorboard" / "sft")
    logged = rows(run / "metrics.jsonl")
    assert [step for step, _ in found["sft/loss"]] == [1, 2, 3]
    assert [value for _, value in found["sft/loss"]] == pytest.approx([row["loss"] for row in logged], rel=1e-6)
    assert {f"sft/{name}" for name in logged[0]} - set(found) == {"sft/stage", "sft/step", "sft/time_s"}
    assert "eval/em" in scalars(run / "tensorboard" / "eval")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_steps_that_a_crash_undid_are_written_over(tmp_path):
    needs("tensorboard")
    for losses in ([5.0, 4.0, 3.0], [2.0, 1.0]):
        with open_trackers(recipe_to("tensorboard"), tmp_path) as log:
            for step, loss in enumerate(losses, start=1 if len(losses) == 3 else 2):
                log("rl", step, {"loss": loss})
    assert scalars(tmp_path / "tensorboard" / "rl")["rl/loss"] == [(1, 5.0), (2, 2.0), (3, 1.0)]


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_an_offline_run_in_the_run_folder(tmp_path, monkeypatch):
    needs("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with open_trackers(recipe_to("wandb", mode="offline"), tmp_path) as log:
        log("rl", 1, {"loss": 0.5})
        log("rl", 2, {"loss": 0.25})
    import wandb

    wandb.teardown()  # its own process writes the file; at the end of ours this happens by itself
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    raw = written.read_bytes()
    assert b"rl/loss" in raw
    assert b"0.25" in raw
    assert all(f"{stage}/*".encode() in raw for stage in ("sft", "rl", "dev", "eval"))  # each by its own steps


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_names_its_extra(tmp_path, monkeypatch, name):
    package = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, package, None)  # what an import of a missing package meets
    with pytest.raises(MissingExtraError, match=rf"seekling\[{name}\]"), open_trackers(recipe_to(name), tmp_path):
        pass


def test_without_trackers_nothing_is_written(tmp_path):
    with open_trackers(recipe_to(), tmp_path) as log:
        log("rl", 1, {"loss": 0.5})
    assert list(tmp_path.iterdir()) == []
