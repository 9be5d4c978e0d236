"""`seekling collect`."""

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

if TYPE_CHECKING:
    from seekling.pipeline.collecting import Collected


@options.served_models
def command(
    recipe: options.Recipe,
    endpoint: EndpointConfig | None,
    judge: JudgeConfig | None,
    overrides: options.Overrides = None,
    in_flight: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 8,
    attempts: Annotated[int, typer.Option(min=1, help="Tries per question, until one is correct.")] = 1,
    num_questions: Annotated[int, typer.Option(min=0, help="First so many training questions; 0: all.")] = 0,
    price_in: options.PriceIn = None,
    price_out: options.PriceOut = None,
    budget_usd: Annotated[float | None, typer.Option(min=0, help="Stop when so many dollars are spent.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=0, help="Stop when so many tokens are spent.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/collect-<name of the recipe>.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Keep the good episodes of a served model, to train on.

    It is asked the training questions, through the recipe's own environment and protocol. Every reply is kept as it
    arrives: the same command goes on after a stop of any kind, and asks nothing twice. `seekling train RECIPE
    experts.file=OUT/episodes/expert.jsonl` then trains on what was kept.
    """
    resolved = load_recipe(recipe, overrides or [])
    folder = out or Path("runs") / f"collect-{resolved.name}"
    if endpoint is None:
        raise ConfigError("collecting asks a served model; give --endpoint and --endpoint-model")
    from seekling.pipeline.collecting import CollectRequest, collect_episodes
    from seekling.pipeline.reporter import Reporter
    from seekling.rollout.chat import Budget

    price = options.chat_price(price_in, price_out)
    request = CollectRequest(
        endpoint=endpoint,
        attempts=attempts,
        num_questions=num_questions,
        in_flight=in_flight,
        price=price,
        budget=Budget(budget_usd, budget_tokens, price),
        judge=judge and judge.model_copy(update={"in_flight": in_flight}),
    )
    reporter = Reporter()
    reporter.line(f"folder: {folder}")
    collected = collect_episodes(resolved, folder, request, reporter)
    if as_json:
        typer.echo(json.dumps(collected.to_json(), ensure_ascii=False))
    else:
        _show(collected, folder)


def _show(collected: Collected, folder: Path) -> None:
    console, selection = Console(highlight=False), collected.selection
    table = Table(
        title=f"{selection.num_episodes} episodes of {selection.num_questions} questions", title_justify="left"
    )
    table.add_column("")
    table.add_column("episodes", justify="right")
    table.add_row("kept", str(len(selection.kept)))
    for reason, count in selection.reasons().most_common():
        table.add_row(f"dropped: {reason}", str(count))
    if len(selection.by_kind()) > 1:
        table.add_section()
        for kind, (kept, every) in selection.by_kind().items():
            table.add_row(f"kept of kind {kind or '(none)'}", f"{kept} of {every}")
    console.print(table)
    cost = "" if collected.cost_usd is None else f", {collected.cost_usd:.4f} USD"
    console.print(f"spent: {collected.spent.num_requests} requests, {collected.spent.num_tokens} tokens{cost}")
    if collected.stopped:
        console.print(collected.stopped, markup=False)
    if selection.kept:
        console.print(f"train: seekling train RECIPE experts.file={folder / 'episodes' / 'expert.jsonl'}", markup=False)
