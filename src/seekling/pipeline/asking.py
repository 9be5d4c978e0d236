"""Evaluation of a policy on questions: every episode is written as it ends, an interrupted evaluation goes on.

Infrastructure failures are kept and counted, and are tried again when the same evaluation is started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from seekling.rollout.chat_roller import ChatRoller
from seekling.rollout.loop import Decoding, Roller
from seekling.serve.agent import Agent, eval_decoding
from seekling.types import EpisodeGroup, EpisodeRecord, Question, StopReason

QuestionRoller = Roller | ChatRoller
"""What turns questions into episodes: over any sampler, or over an endpoint."""


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
    extras: Extras | None = None,
) -> EvalSummary:
    """Evaluate the policy that an agent's sampler holds, as a stage of a run.

    `stage` is eval-<name> for test questions, dev-<name> for development questions.
    """
    name, spec = stage.removeprefix("eval-"), recipe.model.spec
    model = spec if name == "base" else f"{spec}, {name}"
    return ask_and_score(
        folder,
        agent.roller.over(agent.env.with_config(recipe.evaluated.env)),
        questions,
        eval_decoding(recipe),
        EvalSettings.from_recipe(recipe, model=model, num_passages=num_passages_of(recipe, folder)),
        stage,
        reporter,
        seed=recipe.seed,
        extras=extras,
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
    started, earlier_s = time.perf_counter(), folder.progress.seconds.get(stage, 0.0)
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
    written = [record for record in folder.read_records(stage) if asked.get(record.question.key) == record.question]
    # Of one question the newest answer, where there is one.
    by_key = {record.question.key: record for record in sorted(written, key=lambda record: not _is_failed(record))}
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
    made = []
    for record in records:
        scores, verdict = dict(record.scores), verdicts.get(record.question.key)
        scores.pop("judge", None)
        made.append(replace(record, scores=scores if verdict is None else {**scores, "judge": float(verdict)}))
    folder.replace_records(stage, made)
    return judged.details


def _is_failed(record: EpisodeRecord) -> bool:
    return record.episode.stop_reason is StopReason.INFRA_FAILURE


def _scored(stage: str, group: EpisodeGroup) -> list[EpisodeRecord]:
    """Scored records of a question's episodes; infrastructure failures are kept without scores."""
    question = group.question
    scored = [EpisodeRecord(stage, question, each, scores=score_episode(each, question)) for each in group.episodes]
    return [*scored, *(EpisodeRecord(stage, question, each) for each in group.failed)]
