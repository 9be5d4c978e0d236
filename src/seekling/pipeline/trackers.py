"""TensorBoard, Weights & Biases and trackio, each behind its extra. `metrics.jsonl` is the record, these are views.

A metric is called stage/name. Steps of a stage are its own. A run that goes on after a crash writes over what it logged
after its last saved state in TensorBoard; in trackio, which only adds, such steps stand twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seekling.config import Recipe, recipe_to_toml
from seekling.errors import ConfigError, MissingExtraError

if typing.TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


LogMetrics = Callable[[str, int, Mapping[str, float]], None]
"""Takes stage, step and its metrics."""


@contextlib.contextmanager
def open_trackers(recipe: Recipe, run: Path) -> Iterator[LogMetrics]:
    """Open what the recipe's tracking section names, as one; closed at the end.

    Args:
        recipe: its name and settings are told to the trackers.
        run: the run folder; TensorBoard's files go to `tensorboard/`, those of W&B to `wandb/`.

    Raises:
        MissingExtraError: a tracker's package is not installed.
    """
    with contextlib.ExitStack() as stack:
        trackers = [stack.enter_context(contextlib.closing(_OPEN[name](recipe, run))) for name in recipe.tracking.to]

        def log(stage: str, step: int, metrics: Mapping[str, float]) -> None:
            for tracker in trackers:
                tracker.log(stage, step, metrics)

        yield log


class _TensorBoard:
    def __init__(self, recipe: Recipe, run: Path) -> None:
        self._folder = run / "tensorboard"
        self._writers: dict[str, SummaryWriter] = {}
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from None
        self._open = SummaryWriter

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if stage not in self._writers:
            # One writer per stage: what is purged from its first step on is this stage's alone.
            self._writers[stage] = self._open(str(self._folder / stage), purge_step=step)
        writer = self._writers[stage]
        for name, value in metrics.items():
            writer.add_scalar(f"{stage}/{name}", value, step)
        writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class _HostedRun:
    """A run of Weights & Biases, or of trackio, which has its interface."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({f"{stage}/step": step, **{f"{stage}/{name}": value for name, value in metrics.items()}})

    def close(self) -> None:
        self._run.finish()


def _open_wandb(recipe: Recipe, run: Path) -> _HostedRun:
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb", error) from None
    config = recipe.tracking
    try:
        opened = wandb.init(
            project=config.project,
            name=recipe.name,
            id=_id_of(recipe, run),
            resume="allow" if config.mode == "online" else None,
            dir=str(run),
            mode=config.mode,
            config=recipe.model_dump(mode="json"),
        )
    except wandb.errors.Error as error:
        raise ConfigError(
            f"wandb does not take the run of project {config.project!r} ({error}); log in to it, set tracking.mode = "
            '"offline", or take it out of tracking.to'
        ) from None
    for stage in ("sft", "rl", "dev", "eval"):
        opened.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
    return _HostedRun(opened)


def _open_trackio(recipe: Recipe, run: Path) -> _HostedRun:
    try:
        import trackio
    except ImportError as error:
        raise _missing("trackio", error) from None
    name, config = f"{recipe.name}-{_id_of(recipe, run)}", recipe.model_dump(mode="json")
    return _HostedRun(trackio.init(project=recipe.tracking.project, name=name, config=config, resume="allow"))


_OPEN: Mapping[str, Callable[[Recipe, Path], _TensorBoard | _HostedRun]] = {
    "tensorboard": _TensorBoard,
    "wandb": _open_wandb,
    "trackio": _open_trackio,
}


def _id_of(recipe: Recipe, run: Path) -> str:
    """The same for the same run folder and recipe, so that a resumed run goes on in its own page."""
    text = f"{run.resolve()}\n{recipe_to_toml(recipe)}"
    return hashlib.blake2b(text.encode("utf-8"), digest_size=6).hexdigest()


def _missing(name: str, error: ImportError) -> MissingExtraError:
    return MissingExtraError(
        f'tracking.to names "{name}", whose package is not installed ({error}); '
        f"install it with: pip install 'seekling[{name}]', or take it out"
    )
