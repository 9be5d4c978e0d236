"""Evaluation of a policy on questions: every episode is written as it ends, an interrupted evaluation goes on.

Infrastructure failures are kept and counted, and are tried again when the same evaluation is started again.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from seekling.config import Recipe
from seekling.errors import IndexMismatchError
from seekling.evaluate.confidence import Calibration
from seekling.evaluate.intervals import format_rate
from seekling.evaluate.judging import Judge, JudgeDetails
from seekling.evaluate.result_files import write_summary
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import EvalSummary, summarize
from seekling.pipeline.reporter import Reporter
from seekling.pipeline.run_folder import RunFolder
from seekling.retrieval.index_record import read_record
from seekling.reward.functions import score_episode
from seekling.rollout.loop import Decoding
from seekling.serve.agent import Agent, eval_decoding
from seekling.types import EpisodeGroup, EpisodeRecord, Question, StopReason


class QuestionRoller(typing.Protocol):
    """What turns questions into episodes: a `Roller` over any sampler, or a `ChatRoller` over an endpoint."""

    def rollout(
        self,
        questions: Sequence[Question],
        decoding: Decoding,
        *,
        seed: int = 0,
        on_group: Callable[[EpisodeGroup], None] = ...,
    ) -> list[EpisodeGroup]:
        """One episode per question; `on_group` is called as each ends."""
        ...


@dataclass(frozen=True, slots=True)
class Extras:
    """What may come on top of asking and scoring."""

    judge: Judge | None = None
    usd_per_hour: float | None = None
    """Of this machine; None adds up what the episodes cost."""
    calibration: Calibration | None = None
    """Of the policy's confidence."""


def evaluate_policy(
    recipe: Recipe,
    folder: RunFolder,
    agent: Agent,
    questions: Sequence[Question],
    stage: str,
    reporter: Reporter,
    *,
    judge: Judge | None = None,
    calibration: Calibration | None = None,
) -> EvalSummary:
    """Evaluate the policy that an agent's sampler holds, as a stage of a run.

    `stage` is eval-<name> for test questions, dev-<name> for development questions. A judge is asked about each answer.
    """
    return ask_and_score(
        folder,
        agent.roller_over(agent.env.with_config(recipe.evaluated.env)),
        questions,
        eval_decoding(recipe),
        stage_settings(recipe, folder, stage.removeprefix("eval-")),
        stage,
        reporter,
        seed=recipe.seed,
        extras=Extras(judge, calibration=calibration),
    )


def ask_and_score(
    folder: RunFolder,
    roller: QuestionRoller,
    questions: Sequence[Question],
    decoding: Decoding,
    settings: EvalSettings,
    stage: str,
    reporter: Reporter,
    *,
    seed: int,
    extras: Extras | None = None,
) -> EvalSummary:
    """Ask the questions that are not answered in the folder yet, then write all in order, and the summary.

    `settings` go into the summary, and are checked against the episodes; `stage` is eval-<name> or dev-<name>. Episodes
    go to `episodes/<stage>.jsonl` of the folder, the summary where `write_summary` puts it.
    """
    extras = extras or Extras()
    started, earlier_s = time.perf_counter(), folder.seconds().get(stage, 0.0)
    asked = {question.key: question for question in questions}
    earlier = [record for record in folder.read_records(stage) if asked.get(record.question.key) == record.question]
    done = {record.question.key for record in earlier if not _is_failed(record)}
    counts = [sum(record.scores.get("em", 0.0) for record in earlier if not _is_failed(record)), len(done)]
    with reporter.track(stage, len(questions), done=len(done)) as advance:

        def on_group(group: EpisodeGroup) -> None:
            records = _scored(stage, group)
            folder.append_records(records)
            counts[0] += sum(record.scores.get("em", 0.0) for record in records)
            counts[1] += sum(not _is_failed(record) for record in records)
            advance(f"EM {counts[0]:.0f}/{counts[1]:.0f}")

        left = [question for question in questions if question.key not in done]
        roller.rollout(left, decoding, seed=seed, on_group=on_group)
    by_key = {record.question.key: record for record in _newest_last(folder.read_records(stage), asked)}
    folder.replace_records(stage, [by_key[question.key] for question in questions])
    details = _judge(folder, stage, extras.judge, reporter) if extras.judge is not None else None
    wall_s = earlier_s + time.perf_counter() - started
    summary = summarize(
        folder.read_records(stage),
        settings=settings,
        judge_details=details,
        wall_s=wall_s,
        usd_per_hour=extras.usd_per_hour,
        calibration=extras.calibration,
    )
    write_summary(folder.path, summary)
    reporter.line(f"{stage.removeprefix('eval-')}: EM {format_rate(summary.em)}")
    return summary


def stage_settings(recipe: Recipe, folder: RunFolder, name: str) -> EvalSettings:
    """The settings of an evaluation stage of a run."""
    model = recipe.model.spec if name == "base" else f"{recipe.model.spec}, {name}"
    return EvalSettings.from_recipe(recipe, model=model, num_passages=num_passages_of(recipe, folder))


def num_passages_of(recipe: Recipe, folder: RunFolder) -> int:
    """Passages in a run's index; 0 when it has none."""
    try:
        return read_record(recipe.retrieval.folder(folder.path)).counts.passages
    except IndexMismatchError:
        return 0


def _judge(folder: RunFolder, stage: str, judge: Judge, reporter: Reporter) -> JudgeDetails:
    """Put a verdict beside the other scores of every scored episode."""
    records = folder.read_records(stage)
    cases = [record for record in records if not _is_failed(record)]
    with reporter.track(f"judge {stage}", len(cases)) as advance:
        judged = judge.judge(
            [(record.question, record.episode.answer) for record in cases],
            exact=[record.scores["em"] for record in cases],
            on_verdict=lambda: advance(""),
        )
    verdicts = {record.question.key: verdict for record, verdict in zip(cases, judged.verdicts, strict=True)}
    folder.replace_records(stage, [_with_verdict(record, verdicts.get(record.question.key)) for record in records])
    return judged.details


def _with_verdict(record: EpisodeRecord, verdict: bool | None) -> EpisodeRecord:
    scores = {name: value for name, value in record.scores.items() if name != "judge"}
    return replace(record, scores=scores if verdict is None else {**scores, "judge": float(verdict)})


def _newest_last(records: Sequence[EpisodeRecord], asked: Mapping[tuple[str, str], Question]) -> list[EpisodeRecord]:
    """The records of these very questions, an answer after failures, else in the order they were written."""
    mine = [record for record in records if asked.get(record.question.key) == record.question]
    return sorted(mine, key=lambda record: not _is_failed(record))


def _is_failed(record: EpisodeRecord) -> bool:
    return record.episode.stop_reason is StopReason.INFRA_FAILURE


def _scored(stage: str, group: EpisodeGroup) -> list[EpisodeRecord]:
    """Scored records of a question's episodes; infrastructure failures are kept without scores."""
    return [
        EpisodeRecord(
            stage,
            group.question,
            episode,
            scores={} if episode.stop_reason is StopReason.INFRA_FAILURE else score_episode(episode, group.question),
        )
        for episode in (*group.episodes, *group.failed)
    ]
