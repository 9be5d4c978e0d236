"""`seekling eval`, and with --score and --judge-audit figures for anyone's answers and for a judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from seekling.cli import options
from seekling.config import EndpointConfig, JudgeConfig, load_recipe
from seekling.errors import ConfigError
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.evaluate.judge_audit import JudgeReport
    from seekling.evaluate.judging import Judge
    from seekling.evaluate.predictions import PredictionScores
    from seekling.evaluate.scores import Scores
    from seekling.evaluate.settings import Mode
    from seekling.pipeline.eval_request import EvalOutcome

Benchmarks = Annotated[
    list[str] | None, typer.Option(help="Only the questions of this benchmark, by name; may be repeated.")
]


def command(
    ctx: typer.Context,
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    model: Annotated[
        str, typer.Option(help="Model spec or directory, or a run, for its best policy; default the recipe's model.")
    ] = "",
    name: Annotated[str, typer.Option(help="What to call this policy in the files: eval-NAME.")] = "model",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/eval-<recipe>-<name>.")] = None,
    mode: Annotated[str, typer.Option(help="search, or a bound: closed-book, gold-passage, oracle-search.")] = "search",
    samples: Annotated[int, typer.Option(min=1, help="Samples per question; more need eval.rollout.temperature.")] = 1,
    benchmark: Benchmarks = None,
    dev: Annotated[bool, typer.Option("--dev", help="Ask the recipe's development questions, as dev-NAME.")] = False,
    questions: Annotated[Path | None, typer.Option(help="Question file instead of the recipe's test set.")] = None,
    endpoint_url: options.EndpointUrl = "",
    endpoint_model: options.EndpointModel = "",
    endpoint_key_env: options.EndpointKeyEnv = "",
    endpoint_extra: options.EndpointExtra = "",
    endpoint_request_tries: options.EndpointTries = 6,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    price_in: options.PriceIn = None,
    price_out: options.PriceOut = None,
    price_hour: Annotated[float | None, typer.Option(min=0, help="USD per hour of this machine.")] = None,
    judge_url: options.JudgeUrl = "",
    judge_model: options.JudgeModel = "",
    judge_key_env: options.JudgeKeyEnv = "",
    judge_extra: options.JudgeExtra = "",
    judge_max_tokens: options.JudgeTokens = 1024,
    judge_cache: options.JudgeCache = "",
    as_json: options.AsJson = False,
) -> None:
    """Evaluate a model on questions and print the scores with their intervals.

    All test questions are asked, greedily unless the recipe says otherwise, and every episode is written. An evaluation
    that was interrupted goes on where it stopped, and asks again what failed for reasons of infrastructure. With
    --endpoint a served model plays by the recipe's rules. --mode closed-book and gold-passage bound every result.
    """
    resolved = load_recipe(recipe, [*(overrides or []), *_model_change(model)])
    name = f"dev-{name}" if dev else name
    folder = out or Path("runs") / f"eval-{resolved.name}-{name}"
    from seekling.pipeline.eval_request import EvalRequest, run_evaluation
    from seekling.pipeline.reporter import Reporter

    request = EvalRequest(
        name=name,
        mode=_mode(mode),
        num_samples=samples,
        benchmarks=tuple(benchmark or ()),
        questions=questions,
        is_dev=dev,
        endpoint=options.endpoint_of(EndpointConfig, ctx.params),
        in_flight=in_flight,
        price=options.chat_price(price_in, price_out),
        usd_per_hour=price_hour,
        judge=options.endpoint_of(JudgeConfig, ctx.params, in_flight=in_flight, request_tries=endpoint_request_tries),
    )
    reporter = Reporter()
    reporter.line(f"run folder: {folder}")
    _show(run_evaluation(resolved, folder, request, reporter), folder, as_json)


def _model_change(model: str) -> list[str]:
    """The override that names the model; of a run, its best policy."""
    if (Path(model) / "recipe.toml").is_file():
        from seekling.serve.local_model import trained_policy

        trained, words = trained_policy(Path(model))
        typer.echo(f"policy of {model}: {words}", err=True)
        model = str(trained)
    return [f"model.spec={model}"] if model else []


def _mode(name: str) -> Mode:
    from seekling.evaluate.settings import MODES

    for mode in MODES:
        if mode == name:
            return mode
    raise ConfigError(f"--mode {name!r} is none of {', '.join(MODES)}")


def _show(outcome: EvalOutcome, folder: Path, as_json: bool) -> None:
    from seekling.report.formats import print_results, print_tables
    from seekling.report.tables import pooled_table

    if not as_json:
        names = [summary.stage.removeprefix("eval-") for summary in outcome.summaries]
        print_results(folder, names)
        if outcome.samples is not None:
            of = f"{len(names)} samples"
            print_tables([pooled_table([(folder.name, names[0].removesuffix("-s1"), of, outcome.samples)])])
        return
    row: dict[str, Json] = outcome.summaries[0].to_json()
    if outcome.samples is not None:
        rows: list[Json] = [summary.to_json() for summary in outcome.summaries]
        row = {"samples": outcome.samples.to_json(), "summaries": rows}
    typer.echo(json.dumps(row, ensure_ascii=False))


def score(
    ctx: typer.Context,
    predictions: Annotated[Path, typer.Argument(help='JSONL rows {"id", "prediction"}; null is no answer.')],
    questions: Annotated[
        Path, typer.Argument(help="Question file: id, question, answers, in any format that is read.")
    ],
    compat: Annotated[
        str, typer.Option(help="Score responses as another system does, quirks included: search-r1, slime, tinker.")
    ] = "",
    benchmark: Benchmarks = None,
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
    from seekling.evaluate.benchmarks import open_benchmarks
    from seekling.evaluate.predictions import read_predictions, score_predictions
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
        _print_scores(scores, predictions.name)


def _judge(settings: JudgeConfig) -> Judge:
    from seekling.evaluate.judging import Judge, VerdictCache
    from seekling.rollout.chat import ChatClient

    return Judge(
        ChatClient(settings),
        VerdictCache(Path(settings.cache) if settings.cache else None),
        max_tokens=settings.max_tokens,
    )


def _print_scores(scores: PredictionScores, name: str) -> None:
    from seekling.evaluate.intervals import format_rate
    from seekling.report.formats import print_tables
    from seekling.report.results import Table

    rules = f", by the rules of {scores.compat}" if scores.compat else ""
    title = f"{name} on {scores.em.n} questions (set {scores.question_set_hash[:12]}){rules}"
    groups: list[tuple[str, Scores]] = [("all", scores), *scores.by_source.items(), *scores.by_kind.items()]
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


def judge_audit(
    ctx: typer.Context,
    episodes: Annotated[Path, typer.Argument(help="Episodes file, such as runs/demo/episodes/eval-rl.jsonl.")],
    labels: Annotated[Path | None, typer.Option(help='JSONL rows {"source", "id", "correct"} by people.')] = None,
    judge_url: options.JudgeUrl = "",
    judge_model: Annotated[str, typer.Option(help="Model name at --judge-url; without one a model spec.")] = "default",
    judge_key_env: options.JudgeKeyEnv = "",
    judge_extra: options.JudgeExtra = "",
    judge_max_tokens: options.JudgeTokens = 512,
    judge_requests_per_minute: options.Requests = 0.0,
    in_flight: Annotated[int, typer.Option(min=1, help="Episodes judged at once.")] = 8,
    limit: Annotated[int, typer.Option(min=0, help="Judge the first so many episodes; 0: all.")] = 0,
    judge_cache: options.JudgeCache = "",
    as_json: options.AsJson = False,
) -> None:
    """Compare a judge with exact match and with labelled answers.

    Prints how often they agree, how far beyond chance (kappa), and how often answers are right at each rating of the
    approach, all with 95 % intervals. The judge is asked as it is for `rl.reward.kind = "judge"`.
    """
    from seekling.evaluate.judge_audit import audit_judge, read_labels
    from seekling.evaluate.result_files import read_records
    from seekling.pipeline.judge_reward import open_judge
    from seekling.pipeline.reporter import Reporter

    config = options.section_of(JudgeConfig, ctx.params, "judge_", in_flight=in_flight)
    records = list(read_records(episodes))[: limit or None]
    known = read_labels(labels) if labels is not None else {}
    reporter = Reporter()
    with open_judge(config, episodes.parent, reporter) as judge, reporter.track("judge", len(records)) as advance:
        report = audit_judge(judge, records, known, on_verdict=lambda: advance(""))
    if as_json:
        typer.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        _print_audit(report)


def _print_audit(report: JudgeReport) -> None:
    from seekling.evaluate.intervals import format_rate

    console = Console(highlight=False)
    table = Table("correct by", "both, first, second, none", "agreement", "kappa")
    for each in report.agreements:
        counts = f"{each.both}, {each.only_first}, {each.only_second}, {each.neither}"
        kappa = "-" if each.kappa is None else f"{each.kappa:.2f} [{each.kappa_low:.2f}, {each.kappa_high:.2f}]"
        table.add_row(f"{each.first}, {each.second}", counts, format_rate(each.agreement), kappa)
    console.print(table)
    bins = Table("approach rated", "mean rating", f"correct by {report.truth}")
    for part in report.calibration:
        mean = "-" if part.mean_rating is None else f"{100 * part.mean_rating:.0f}"
        bins.add_row(f"{100 * part.low:.0f} to {100 * part.high:.0f}", mean, format_rate(part.correct))
    console.print(bins)
    if report.calibration_error is not None:
        console.print(f"calibration error: {100 * report.calibration_error:.1f} points")
    errors = ", ".join(f"{count} {cause}" for cause, count in report.errors.items()) or "none"
    console.print(f"judge: {report.model}; {report.num_cases} cases, {report.num_labelled} labelled; errors: {errors}")
