"""`seekling eval --score`: figures for anyone's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seekling.cli import options
from seekling.config import JudgeConfig

if TYPE_CHECKING:
    from seekling.evaluate.judging import Judge
    from seekling.evaluate.score import PredictionScores


def command(
    ctx: typer.Context,
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
    judge_url: options.JudgeUrl = "",
    judge_model: options.JudgeModel = "",
    judge_key_env: options.JudgeKeyEnv = "",
    judge_extra: options.JudgeExtra = "",
    judge_max_tokens: options.JudgeTokens = 1024,
    judge_cache: options.JudgeCache = "",
    as_json: options.AsJson = False,
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

    settings = options.endpoint_of(JudgeConfig, ctx.params)
    asked = open_benchmarks(benchmark, questions).questions if benchmark else read_questions(questions)
    scores = score_predictions(
        read_predictions(predictions),
        asked,
        scorer=compatible_scorer(compat) if compat else None,
        judge=_judge(settings) if settings is not None else None,
    )
    if as_json:
        print(json.dumps(scores.to_json(), ensure_ascii=False, indent=2))
    else:
        _print(scores, predictions.name)


def _judge(settings: JudgeConfig) -> Judge:
    from seekling.evaluate.judging import Judge, VerdictCache
    from seekling.rollout.chat import ChatClient

    return Judge(
        ChatClient(settings),
        VerdictCache(Path(settings.cache) if settings.cache else None),
        max_tokens=settings.max_tokens,
    )


def _print(scores: PredictionScores, name: str) -> None:
    from seekling.evaluate import format_rate
    from seekling.evaluate.score import Scores
    from seekling.report.formats import print_tables
    from seekling.report.results import Table

    rules = f", by the rules of {scores.compat}" if scores.compat else ""
    title = f"{name} on {scores.em.n} questions (set {scores.question_set_hash[:12]}){rules}"
    whole = Scores(scores.em, scores.f1, scores.substring, scores.rouge_l, scores.judge)
    groups = (("all", whole), *scores.by_source.items(), *scores.by_kind.items())
    rows = tuple((label or "(none)", g.em, g.f1, g.substring, g.rouge_l, g.judge) for label, g in groups)
    header = ("", "exact match", "F1", "substring", "ROUGE-L", "judge")
    warnings = []
    if scores.judge_details is not None and scores.judge_details.errors:
        errors = ", ".join(f"{count} {cause}" for cause, count in scores.judge_details.errors.items())
        warnings.append(f"without a verdict and left out of the judge's rate: {errors}")
    if scores.num_vacuous_golds:
        matched = "match any answer that does too" if scores.compat else "were matched by their own letters"
        examples = "; ".join(scores.vacuous_golds[:3])
        warnings.append(f"{scores.num_vacuous_golds} gold answer(s) normalise to nothing and {matched}: {examples}")
    table = Table("scores", title, header, rows, (f"answered {format_rate(scores.answered)}",)).without_empty()
    print_tables([table], warnings)
