"""TensorBoard and Weights & Biases, each behind its extra. `metrics.jsonl` is the record, these are views.

A metric is called stage/name. Steps of a stage are its own. A run that goes on after a crash writes over what it logged
after its last saved state in TensorBoard.
"""

from __future__ import annotations

import contextlib
import hashlib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seekling.config import Recipe, recipe_to_toml
from seekling.errors import ConfigError, MissingExtraError

if typing.TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LogMetrics = Callable[[str, int, Mapping[str, float]], None]
"""Takes stage, step and its metrics."""


@contextlib.contextmanager
def open_trackers(recipe: Recipe, run: Path) -> Iterator[LogMetrics]:
    """What the recipe's tracking section names, as one; files go to `tensorboard/` and `wandb/` of the run folder.

    Raises:
        MissingExtraError: a tracker's package is not installed.
    """
    openers = {"tensorboard": _tensorboard, "wandb": _wandb}
    with contextlib.ExitStack() as stack:
        loggers = []
        for name in recipe.tracking.to:
            try:
                loggers.append(stack.enter_context(openers[name](recipe, run)))
            except ImportError as error:
                raise MissingExtraError(
                    f'tracking.to names "{name}", whose package is not installed ({error}); '
                    f"install it with: pip install 'seekling[{name}]', or take it out"
                ) from None

        def log(stage: str, step: int, metrics: Mapping[str, float]) -> None:
            for logger in loggers:
                logger(stage, step, metrics)

        yield log


@contextlib.contextmanager
def _tensorboard(recipe: Recipe, run: Path) -> Iterator[LogMetrics]:
    from torch.utils.tensorboard import SummaryWriter

    with contextlib.ExitStack() as stack:
        writers: dict[str, SummaryWriter] = {}

        def log(stage: str, step: int, metrics: Mapping[str, float]) -> None:
            if stage not in writers:
                # One writer per stage: what is purged from its first step on is this stage's alone.
                writers[stage] = SummaryWriter(str(run / "tensorboard" / stage), purge_step=step)
                stack.callback(writers[stage].close)
            for name, value in metrics.items():
                writers[stage].add_scalar(f"{stage}/{name}", value, step)
            writers[stage].flush()

        yield log


@contextlib.contextmanager
def _wandb(recipe: Recipe, run: Path) -> Iterator[LogMetrics]:
    import wandb

    config = recipe.tracking
    # The same for the same folder and recipe, so that a resumed run goes on in its own page.
    digest = hashlib.blake2b(f"{run.resolve()}\n{recipe_to_toml(recipe)}".encode(), digest_size=6).hexdigest()
    try:
        opened = wandb.init(
            project=config.project,
            name=recipe.name,
            id=digest,
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
    try:
        yield lambda stage, step, metrics: opened.log(
            {f"{stage}/step": step, **{f"{stage}/{name}": value for name, value in metrics.items()}}
        )
    finally:
        opened.finish()
