"""What every stack is given: a recipe's environment and reward, opened once in a process, and episodes by text.

A stack samples and learns; what an agent may do, what it is shown and what an episode is worth is the recipe's. Many
episodes may run at once, each in one thread at a time: asyncio programs call `TextEpisode.step` by `asyncio.to_thread`.
Processes that open the same folder at once wait for the one that builds its index.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import pydantic

from seekling.config import Recipe, load_recipe
from seekling.env.protocol.stopping import cut_after_stop
from seekling.errors import DataError, InfrastructureError
from seekling.pipeline.reporter import Reporter
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.served import open_env, token_counter
from seekling.pipeline.world import World, open_world
from seekling.retrieval.index_record import RECORD_NAME
from seekling.retrieval.library import open_library
from seekling.reward.functions import make_reward, score_episode
from seekling.serve.local_model import recipe_of_run
from seekling.types import Episode, Message, Question, Reward, StopReason, Turn

NAME = "seekling"
"""Of the agent loop in verl, and of the environment in SkyRL."""
Split = Literal["train", "dev", "test"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one action led to."""

    observation: Message | None
    """The next message to the policy; None when the episode is over, which then has the rest."""
    episode: Episode | None = None
    reward: Reward | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """See `metrics_of`."""


class RecipeEnvironment:
    """A recipe's rules, tools and reward. Safe to share between threads; `open_environment` makes one.

    Its data, retrieval, env, rollout and rl.reward sections count; a reward by a judge is refused. The run folder holds
    the index; it is made where it is missing.

    Raises:
        SeeklingError: the recipe's data or index is missing or bad, or its sandbox cannot start here.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.reward = make_reward(recipe.rl.reward.kind, recipe.rl.reward)
        index = recipe.retrieval.folder(folder)
        if not recipe.retrieval.url and not (index / RECORD_NAME).is_file():
            self.world()
        count_tokens, _ = token_counter(recipe, Reporter())
        self._pid, self._held = os.getpid(), contextlib.ExitStack()
        opened = open_env(recipe, open_library(index, recipe.retrieval), count_tokens)
        self.env, _ = self._held.enter_context(opened)
        atexit.register(self._close)

    def world(self) -> World:
        """Corpus, index and questions of the recipe; one process at a time makes what is missing."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_name(f".{self.folder.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            RunFolder(self.folder, self.recipe)
            return open_world(self.recipe, self.folder, Reporter())

    def extra_info(self, question: Question, split: Split) -> dict[str, str]:
        """What a stack's row says of a question, so that `open_row` finds both again."""
        return {
            "index": question.id,
            "split": split,
            "question": question.question,
            "seekling_recipe": str(self.folder),
            "seekling_question": json.dumps(asdict(question), ensure_ascii=False),
        }

    def _close(self) -> None:
        if os.getpid() == self._pid:  # a forked child leaves the sandbox to its parent
            self._held.close()


class TextEpisode:
    """One episode, played by texts. The last step closes it."""

    def __init__(self, environment: RecipeEnvironment, question: Question) -> None:
        self._environment, self.question = environment, question
        self._session = environment.env.start(question)
        self.messages = tuple(self._session.prompt)
        """The prompt."""
        self._turns: list[Turn] = []

    def step(self, action: str, *, is_cut: bool = False) -> Step:
        """Take one turn; what stands after a stop string of the protocol is not read. `is_cut`: it ran out of tokens.

        Raises:
            InfrastructureError: a search or the sandbox failed. The episode is over and has no reward: leave it out.
        """
        protocol = self._environment.env.protocol
        text, is_whole = cut_after_stop(action, protocol.stops)
        result = self._session.step(text, finish="length" if is_cut and not is_whole else "stop")
        self._turns.append(result.turn)
        if result.stop_reason is None:
            return Step(Message(protocol.observation_role, result.turn.observation))
        if result.stop_reason is StopReason.INFRA_FAILURE:
            raise InfrastructureError(result.failure)
        return self.end(result.stop_reason, result.answer)

    def end(self, stop_reason: StopReason, answer: str | None = None) -> Step:
        """Score the episode as it is: also for a stack whose own limit ended it."""
        self.close()
        question, protocol = self.question, self._environment.env.protocol.name
        turns = tuple(self._turns)
        episode = Episode(question.id, question.source, protocol, self.messages, turns, answer, stop_reason)
        return Step(None, episode, self._environment.reward(episode, question), metrics_of(episode, question))

    def close(self) -> None:
        """Give up what the episode holds. May be called twice."""
        self._session.close()


def metrics_of(episode: Episode, question: Question) -> dict[str, float]:
    """em, f1, substring and rouge_l of an episode's answer, and num_searches."""
    return {**score_episode(episode, question), "num_searches": float(episode.num_searches)}


def open_environment(recipe: str, overrides: Sequence[str] = (), *, out: str = "") -> RecipeEnvironment:
    """A recipe's environment; the same object each time in a process.

    Args:
        recipe: a TOML file, the name of a recipe, or a run folder, which needs no overrides.
        overrides: `section.key=value`.
        out: folder for the index; default runs/<name of the recipe>.

    Raises:
        SeeklingError: see `RecipeEnvironment`.
    """
    is_run = (Path(recipe) / "recipe.toml").is_file()
    resolved = recipe_of_run(Path(recipe)) if is_run else load_recipe(recipe, overrides)
    folder = Path(recipe if is_run else out or f"runs/{resolved.name}").resolve()
    with _lock:
        opened = _opened.get((os.getpid(), folder))
        if opened is None or opened.recipe != resolved:
            opened = _opened[os.getpid(), folder] = RecipeEnvironment(resolved, folder)
        return opened


def open_row(extra_info: object, *, recipe: str = "") -> tuple[RecipeEnvironment, Question]:
    """Environment and question of a row with `RecipeEnvironment.extra_info`; `recipe` replaces the run folder in it.

    Raises:
        DataError: it is no such row.
        SeeklingError: see `RecipeEnvironment`.
    """
    try:
        info = _INFO.validate_python(extra_info)
        question = _QUESTION.validate_json(info["seekling_question"])
        return open_environment(recipe or info["seekling_recipe"]), question
    except (KeyError, pydantic.ValidationError) as error:
        raise DataError(
            f"extra_info of a row is not what `seekling data parquet` writes ({error}); write it anew"
        ) from None


_INFO = pydantic.TypeAdapter(dict[str, str])
_QUESTION = pydantic.TypeAdapter(Question)
_opened: dict[tuple[int, Path], RecipeEnvironment] = {}
_lock = threading.Lock()
