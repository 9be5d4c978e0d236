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
    from seekling.evaluate.confidence import read_calibration
    from seekling.evaluate.evidence import is_abstention
    from seekling.serve.local_model import trained_policy

    calibration = read_calibration(trained_policy(run, policy)[0])
    confidence = calibration.confidence(answer.episode) if calibration is not None else None
    is_unsure = calibration is not None and confidence is not None and confidence < calibration.threshold
    if as_json:
        sources = [asdict(source) for source in answer.sources]
        row = {
            "question": question,
            "answer": answer.text,
            "confidence": confidence,
            "is_sure_enough": None if confidence is None else not is_unsure,
            "stop_reason": answer.stop_reason.value,
            "sources": sources,
        }
        typer.echo(json.dumps(row, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for turn in answer.episode.turns:
        if turn.calls:
            console.print(turn.action.strip(), markup=False, style="dim")
    if answer.text is None:
        console.print(f"no answer ({answer.stop_reason.value})", markup=False, style="bold")
    elif is_abstention(answer.text):
        console.print("not found", markup=False, style="bold")
    elif is_unsure:
        console.print("not found", markup=False, style="bold")
        console.print(f"  perhaps: {answer.text} (confidence {confidence:.2f})", markup=False)
    else:
        console.print(answer.text, markup=False, style="bold")
        if confidence is not None:
            console.print(f"  confidence {confidence:.2f}", markup=False)
    for source in answer.sources:
        mark = "*" if source.states_answer else " "
        console.print(f"  {mark} {source.title} [{source.document_id}]", markup=False)
