"""`seekling score`: figures for anyone's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seekling.cli.chat_options import (
    JudgeExtra,
    JudgeKeyEnv,
    JudgeModel,
    JudgeTokens,
    JudgeUrl,
    endpoint_of,
)
from seekling.config import JudgeConfig

if TYPE_CHECKING:
    from seekling.evaluate.judging import Judge
    from seekling.evaluate.score import PredictionScores


def command(
    predictions: Annotated[Path, typer.Argument(help='JSONL rows {"id", "prediction"}; null is no answer.')],
    questions: Annotated[
        Path, typer.Argument(help="Question file: id, question, answers, in any format that is read.")
    ],
    compat: Annotated[
        str, typer.Option(help="Score responses as another system does, quirks included: search-r1, slime, tinker.")
    ] = "",
    benchmark: Annotated[
        list[str] | None, typer.Option(help="Only the questions of this benchmark, by name; may be repeated.")
    ] = None,
    judge_url: JudgeUrl = "",
    judge_model: JudgeModel = "",
    judge_key_env: JudgeKeyEnv = "",
    judge_extra: JudgeExtra = "",
    judge_tokens: JudgeTokens = 1024,
    judge_cache: Annotated[Path | None, typer.Option(help="File in which verdicts are kept.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score anyone's answers against a question file.

    Prints exact match, F1, substring match and ROUGE-L, with SQuAD's normalisation, k/n and 95 % intervals, and judge
    accuracy when a judge is named. Every question needs exactly one row; "source" in a row tells apart ids that restart
    per data set. With --compat the predictions are whole responses, in which the other system looks for the answer.
    """
    from seekling.corpus.questions import read_questions
    from seekling.evaluate import read_predictions, score_predictions
    from seekling.evaluate.benchmarks import open_benchmarks
    from seekling.reward.compat import compatible_scorer

    settings = endpoint_of(JudgeConfig, judge_url, judge_model, judge_key_env, judge_extra, max_tokens=judge_tokens)
    asked = open_benchmarks(benchmark, questions).questions if benchmark else read_questions(questions)
    scores = score_predictions(
        read_predictions(predictions),
        asked,
        scorer=compatible_scorer(compat) if compat else None,
        judge=_judge(settings, judge_cache) if settings is not None else None,
    )
    if as_json:
        print(json.dumps(scores.to_json(), ensure_ascii=False, indent=2))
    else:
        _print(scores, predictions.name)


def _judge(settings: JudgeConfig, cache: Path | None) -> Judge:
    from seekling.evaluate.judging import Judge, VerdictCache
    from seekling.rollout.chat import ChatClient

    return Judge(ChatClient(settings), VerdictCache(cache), max_tokens=settings.max_tokens)


def _print(scores: PredictionScores, name: str) -> None:
    from seekling.evaluate import format_mean, format_rate
    from seekling.evaluate.score import Scores

    with_judge = scores.judge is not None
    rules = f", by the rules of {scores.compat}" if scores.compat else ""
    table = Table(title=escape(f"{name} on {scores.em.n} questions (set {scores.question_set_hash[:12]}){rules}"))
    for column in ("", "exact match", "F1", "substring", "ROUGE-L", *(["judge"] if with_judge else [])):
        table.add_column(column)
    whole = Scores(scores.em, scores.f1, scores.substring, scores.rouge_l, scores.judge)
    for label, group in (("all", whole), *scores.by_source.items(), *scores.by_kind.items()):
        judge = [format_rate(group.judge) if group.judge is not None else "-"] if with_judge else []
        rates = (format_rate(group.em), format_mean(group.f1), format_rate(group.substring), format_mean(group.rouge_l))
        table.add_row(escape(label or "(none)"), *rates, *judge)
    console = Console()
    console.print(table)
    console.print(f"answered {format_rate(scores.answered)}", highlight=False, markup=False)
    if scores.judge_details is not None and scores.judge_details.errors:
        errors = ", ".join(f"{count} {cause}" for cause, count in scores.judge_details.errors.items())
        console.print(f"without a verdict and left out of the judge's rate: {errors}", style="yellow", markup=False)
    if scores.num_vacuous_golds:
        matched = "match any answer that does too" if scores.compat else "were matched by their own letters"
        examples = "; ".join(scores.vacuous_golds[:3])
        console.print(
            f"warning: {scores.num_vacuous_golds} gold answer(s) normalise to nothing and {matched}: {examples}",
            style="yellow",
            markup=False,
        )
