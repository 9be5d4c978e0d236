"""`seekling ask`."""

from __future__ import annotations

import gc
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, such as runs/demo.")],
    question: Annotated[str, typer.Argument(help="What to ask.")],
    policy: Annotated[str, typer.Option(help="best, rl or sft; default: the best.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a trained agent a question and see its answer, its searches and its sources."""
    gc.disable()  # a fifth of the time that torch and transformers take to import, and they leave no garbage
    from seekling.serve import load_agent

    gc.freeze()
    gc.enable()
    with load_agent(run, policy=policy, log=lambda line: typer.echo(line, err=True)) as agent:
        answer = agent.ask(question)
    if as_json:
        sources = [asdict(source) for source in answer.sources]
        row = {"question": question, "answer": answer.text, "stop_reason": answer.stop_reason.value, "sources": sources}
        typer.echo(json.dumps(row, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for turn in answer.episode.turns:
        if turn.calls:
            console.print(turn.action.strip(), markup=False, style="dim")
    text = answer.text if answer.text is not None else f"no answer ({answer.stop_reason.value})"
    console.print(text, markup=False, style="bold")
    for source in answer.sources:
        mark = "*" if source.states_answer else " "
        console.print(f"  {mark} {source.title} [{source.document_id}]", markup=False)
