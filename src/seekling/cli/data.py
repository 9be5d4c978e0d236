"""`seekling data`: an invented world, step-wise records, questions out of feedback, questions for other stacks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from seekling.cli.options import AsJson, Overrides, Recipe
from seekling.errors import ConfigError

app = typer.Typer(
    help="Make data: an invented world, records and questions to train on.",
    no_args_is_help=True,
)


@app.command()
def almanac(
    out: Annotated[Path, typer.Option(help="Folder to make; must not exist yet, or be empty.")],
    pages: Annotated[int, typer.Option(help="How many pages, 150 to 1,000,000.")] = 1000,
    seed: Annotated[int, typer.Option(help="Which world. Same pages and seed, same bytes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write an almanac of an invented world: corpus.jsonl, train.jsonl, dev.jsonl and test.jsonl."""
    from seekling.corpus.almanac import generate
    from seekling.pipeline.reporter import Reporter

    with Reporter().stages() as report:
        summary = generate(pages, seed, out, progress=report)
    if as_json:
        row = {"out": str(summary.out), "pages": summary.pages, "seed": summary.seed, **summary.num_questions}
        typer.echo(json.dumps(row | {"provinces": summary.num_provinces, "words": summary.num_words}))
        return
    questions = ", ".join(f"{num:,} {side}" for side, num in summary.num_questions.items())
    provinces = ", ".join(map(str, summary.num_provinces.values()))
    typer.echo(
        f"{summary.out}: {summary.pages:,} pages ({summary.num_words:,} words); questions: {questions}, about "
        f"{provinces} provinces."
    )


@app.command()
def stepwise(
    episodes: Annotated[Path, typer.Argument(help="Episodes file, such as runs/collect-x/episodes/expert.jsonl.")],
    out: Annotated[Path, typer.Option(help="File to write, such as iterative_sft_data.json.")],
    max_tokens: Annotated[int, typer.Option(min=0, help="A longer record loses its oldest turns; 0: no limit.")] = 0,
    model: Annotated[str, typer.Option(help="Whose tokens are counted, with --max-tokens.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Write tag episodes as step-wise records for fine-tuning, in LLaMA-Factory's alpaca format.

    An episode of n turns becomes n records, each with all that came before in its instruction. dataset_info.json is
    written beside them. `seekling train RECIPE experts.file=FILE` reads them back.
    """
    if out.suffix != ".json":
        raise ConfigError(f"{out} is not a .json file; LLaMA-Factory and experts.file tell the format by the ending")
    from seekling.evaluate.result_files import read_records
    from seekling.experts.stepwise import write_steps

    renderer = None
    if max_tokens:
        from seekling.models import resolve_model
        from seekling.rollout.render import load_renderer

        renderer = load_renderer(resolve_model(model, log=lambda line: typer.echo(line, err=True)))
    made = (record.episode for record in read_records(episodes))
    report = write_steps(made, out, max_tokens=max_tokens, renderer=renderer)
    typer.echo(json.dumps(asdict(report)) if as_json else f"{out}: {report}")


@app.command()
def feedback(
    run: Annotated[Path, typer.Argument(help="Run folder that was served, such as runs/demo.")],
    out: Annotated[Path, typer.Option(help="File to write, such as feedback.jsonl.")],
    as_json: AsJson = False,
) -> None:
    """Write what people corrected or called right in a served agent's answers as questions to train on.

    `seekling train RECIPE data.train=FILE` reads them; `cat` adds them to other questions.
    """
    from seekling.pipeline.feedback import export_feedback

    report = export_feedback(run, out)
    typer.echo(json.dumps(asdict(report)) if as_json else f"{out}: {report}")


@app.command()
def parquet(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name of the recipe>.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a recipe's questions for training in verl or SkyRL (docs/OTHER_STACKS.md).

    The folder gets the recipe, its index, train.parquet, dev.parquet, test.parquet and verl's agent_loop.yaml.
    """
    from seekling.stacks.environment import open_environment
    from seekling.stacks.parquet import write_parquet

    environment = open_environment(str(recipe), overrides or (), out=str(out or ""))
    counts = write_parquet(environment)
    row = {"out": str(environment.folder), **counts}
    typer.echo(json.dumps(row) if as_json else f"{environment.folder}: {counts}")
