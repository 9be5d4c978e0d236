"""`seekling eval`: a policy's answers to questions, scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seekling.cli import options
from seekling.config import EndpointConfig, JudgeConfig, load_recipe
from seekling.types import Json

if TYPE_CHECKING:
    from seekling.pipeline.eval_request import EvalOutcome


@options.served_models
def command(
    recipe: options.Recipe,
    endpoint: EndpointConfig | None,
    judge: JudgeConfig | None,
    overrides: options.Overrides = None,
    model: Annotated[
        str, typer.Option(help="Model spec or directory, or a run, for its best policy; default the recipe's model.")
    ] = "",
    name: Annotated[str, typer.Option(help="What to call this policy in the files: eval-NAME.")] = "model",
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/eval-<recipe>-<name>.")] = None,
    mode: Annotated[
        Literal["search", "closed-book", "gold-passage"],
        typer.Option(help="search, or a bound of it: closed-book, gold-passage."),
    ] = "search",
    samples: Annotated[int, typer.Option(min=1, help="Samples per question; more need eval.rollout.temperature.")] = 1,
    dev: Annotated[bool, typer.Option("--dev", help="Ask the recipe's development questions, as dev-NAME.")] = False,
    questions: Annotated[Path | None, typer.Option(help="Question file instead of the recipe's test set.")] = None,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    price_in: options.PriceIn = None,
    price_out: options.PriceOut = None,
    price_hour: Annotated[float | None, typer.Option(min=0, help="USD per hour of this machine.")] = None,
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
        mode=mode,
        num_samples=samples,
        questions=questions,
        is_dev=dev,
        endpoint=endpoint,
        in_flight=in_flight,
        price=options.chat_price(price_in, price_out),
        usd_per_hour=price_hour,
        judge=judge and judge.model_copy(update={"in_flight": in_flight}),
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
