"""`seekling collect`: a served model answers the training questions through the real environment, and is paid once.

<out>/episodes/teacher.jsonl   every episode, as it ended
<out>/replies.jsonl            every reply of the model, as it arrived
<out>/episodes/expert.jsonl    the kept episodes: what `experts.file` takes
<out>/selection.json           what was dropped and why, and what was spent

A process that was killed goes on where it was: finished episodes are not begun again, and of unfinished ones the
replies are in the journal.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seekling.config import EndpointConfig, JudgeConfig, Recipe
from seekling.corpus.questions import question_set_hash
from seekling.errors import BudgetReachedError, ConfigError
from seekling.evaluate.judging import Judge
from seekling.experts.select import Selection, is_correct, select_episodes
from seekling.files import write_atomically
from seekling.pipeline.judge_reward import open_judge
from seekling.pipeline.reporter import Reporter, deferred_interrupt
from seekling.pipeline.run_folder import RunFolder
from seekling.pipeline.served import claim, open_env, token_counter
from seekling.pipeline.world import open_world
from seekling.rollout.chat import Budget, ChatClient, JournalledChat, Price, Spent
from seekling.rollout.chat_roller import ChatRoller
from seekling.rollout.sampler import derive_seed
from seekling.serve.agent import training_decoding
from seekling.types import EpisodeGroup, EpisodeRecord, Json, Question, StopReason

STAGE = "teacher"


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """What `seekling collect` is asked for besides the recipe."""

    endpoint: EndpointConfig
    attempts: int = 1
    """Tries per question; one that has been answered correctly is not tried again."""
    num_questions: int = 0
    """First so many training questions; 0 asks all."""
    in_flight: int = 8
    price: Price | None = None
    budget: Budget = field(default_factory=Budget)
    judge: JudgeConfig | None = None
    """Decides whether answers that do not match exactly are correct; None leaves it to exact match."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What came of it."""

    selection: Selection
    spent: Spent
    cost_usd: float | None
    stopped: str
    """Why it ended before every question was asked; empty when it did not."""

    def to_json(self) -> dict[str, Json]:
        """A plain JSON object."""
        names = ("num_requests", "prompt_tokens", "completion_tokens")
        spent: dict[str, Json] = {name: getattr(self.spent, name) for name in names}
        return {**self.selection.to_json(), "spent": spent | {"cost_usd": self.cost_usd}, "stopped": self.stopped}


def collect_episodes(recipe: Recipe, path: Path, request: CollectRequest, reporter: Reporter) -> Collected:
    """Ask, or go on where an earlier process stopped, then select.

    Of the recipe its data, retrieval, env, rollout (temperature and budgets) and experts sections count.

    Raises:
        ConfigError: the request does not make sense, the endpoint refuses us, or the folder holds another collection.
        DataError: a file is bad.
        KeyboardInterrupt: after Ctrl-C, when the replies under way have arrived.
    """
    if request.attempts > 1 and recipe.rollout.temperature == 0 and not recipe.rollout.temperature_range:
        raise ConfigError("further attempts of a greedy model are copies; set rollout.temperature above 0")
    client = ChatClient(request.endpoint)  # first: an address or a key that cannot be right is known at once
    folder = RunFolder(path, recipe)
    world = open_world(recipe, path, reporter)
    questions = world.train[: request.num_questions or None]
    now: dict[str, Json] = {
        "endpoint": request.endpoint.url,
        "model": request.endpoint.model,
        "extra": json.dumps(request.endpoint.fields, sort_keys=True),
        "question_set_hash": question_set_hash(world.train),
    }
    claim(path / "requests" / "collect.json", now, what="a collection", instead="use another folder with --out")
    stopped = ""
    count_tokens, _ = token_counter(recipe, reporter)
    with (
        folder.written_here_only(),
        open_judge(request.judge, path, reporter) if request.judge else contextlib.nullcontext() as judge,
    ):
        with (
            open_env(recipe, world.library, count_tokens) as (env, _),
            deferred_interrupt(reporter, "replies that are under way are paid for and kept") as is_interrupted,
        ):
            journal = path / "replies.jsonl"
            chat = JournalledChat(client, journal, request.budget, is_interrupted=is_interrupted)
            roller = ChatRoller(env, chat, in_flight=request.in_flight, price=request.price)
            try:
                for attempt in range(request.attempts):
                    _ask_once(recipe, folder, roller, questions, attempt, judge, reporter)
            except BudgetReachedError as error:
                stopped = f"the budget is reached: {error}; a larger one goes on from here"
        # Judging is another endpoint's and not in the budget; it closes the last round, or one that the budget cut.
        records = _judged(_records(folder, questions), judge, reporter)
    selection = select_episodes(records, balance=recipe.experts.balance, max_episodes=recipe.experts.max_episodes)
    folder.replace_records("expert", selection.kept)
    collected = Collected(selection, chat.spent, chat.spent.cost_usd(request.price), stopped)
    write_atomically(path / "selection.json", json.dumps(collected.to_json(), ensure_ascii=False, indent=1) + "\n")
    return collected


def _ask_once(
    recipe: Recipe,
    folder: RunFolder,
    roller: ChatRoller,
    questions: Sequence[Question],
    attempt: int,
    judge: Judge | None,
    reporter: Reporter,
) -> None:
    """Let every question that has no correct episode yet be tried once more."""
    records = _judged(_records(folder, questions), judge, reporter) if attempt else _records(folder, questions)
    seed = derive_seed(recipe.seed, STAGE, attempt)
    ended = [each for each in records if each.episode.stop_reason is not StopReason.INFRA_FAILURE]
    tried = {(each.question.key, each.episode.seed) for each in ended}
    solved = {each.question.key for each in records if is_correct(each)}
    unsolved = [question for question in questions if question.key not in solved]
    left = [each for each in unsolved if (each.key, derive_seed(seed, *each.key, 0)) not in tried]
    num_correct = len(solved)
    with reporter.track(f"collect, attempt {attempt + 1}", len(questions), done=len(questions) - len(left)) as advance:

        def on_group(group: EpisodeGroup) -> None:
            nonlocal num_correct
            made = [EpisodeRecord(STAGE, group.question, each) for each in (*group.episodes, *group.failed)]
            folder.append_records(made)
            num_correct += sum(map(is_correct, made))
            advance(f"{num_correct} correct")

        roller.rollout(left, training_decoding(recipe), seed=seed, on_group=on_group)


def _records(folder: RunFolder, questions: Sequence[Question]) -> list[EpisodeRecord]:
    """Episodes of these questions, in the order in which they ended; failures that were tried again are left out."""
    asked = {question.key: question for question in questions}
    newest: dict[tuple[tuple[str, str], int], EpisodeRecord] = {}
    for record in folder.read_records(STAGE):
        if asked.get(record.question.key) == record.question:
            newest[record.question.key, record.episode.seed] = record
    return list(newest.values())


def _judged(records: list[EpisodeRecord], judge: Judge | None, reporter: Reporter) -> list[EpisodeRecord]:
    """Put a verdict beside every answer that does not match exactly. A judge that fails leaves it to exact match."""
    cases = [each for each in records if each.episode.stop_reason is StopReason.ANSWERED and not is_correct(each)]
    if judge is None or not cases:
        return records
    judged = judge.judge([(each.question, each.episode.answer) for each in cases])
    if judged.details.errors:
        failed = ", ".join(f"{count} {cause}" for cause, count in judged.details.errors.items())
        reporter.line(f"note: the judge decided nothing in {failed}; these answers count by exact match")
    verdicts = {id(each): verdict for each, verdict in zip(cases, judged.verdicts, strict=True) if verdict is not None}
    return [
        replace(each, scores={"judge": float(verdicts[id(each)])}) if id(each) in verdicts else each for each in records
    ]
