"""`seekling ask` and `seekling chat`: questions to a trained agent."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from seekling.cli.options import AsJson, Policy

if TYPE_CHECKING:
    from seekling.evaluate.confidence import Calibration
    from seekling.serve import Agent, Answer

Run = Annotated[Path, typer.Argument(help="Folder of a finished run, such as runs/demo.")]


def command(
    run: Run,
    question: Annotated[str, typer.Argument(help="What to ask.")],
    policy: Policy = "",
    as_json: AsJson = False,
) -> None:
    """Ask a trained agent: its answer, its searches and its sources."""
    with _opened(run, policy) as (agent, calibration):
        answer = agent.ask(question)
    confidence, is_unsure = _confidence(answer, calibration)
    if not as_json:
        _print(answer, confidence, is_unsure=is_unsure)
        return
    row = {
        "question": question,
        "answer": answer.text,
        "confidence": confidence,
        "is_sure_enough": None if confidence is None else not is_unsure,
        "stop_reason": answer.stop_reason.value,
        "sources": [asdict(source) for source in answer.sources],
    }
    typer.echo(json.dumps(row, ensure_ascii=False))


def chat(run: Run, policy: Policy = "") -> None:
    """Ask a trained agent one question after another.

    Each question stands for itself: the agent remembers nothing of those before. An empty line or Ctrl-D ends it.
    """
    with contextlib.suppress(ImportError):  # on Windows
        import readline  # noqa: F401  (arrow keys and earlier questions at the prompt)

    with _opened(run, policy) as (agent, calibration), contextlib.suppress(EOFError):
        while question := input("> ").strip():
            answer = agent.ask(question)
            confidence, is_unsure = _confidence(answer, calibration)
            _print(answer, confidence, is_unsure=is_unsure)


@contextlib.contextmanager
def _opened(run: Path, policy: str) -> Iterator[tuple[Agent, Calibration | None]]:
    gc.disable()  # a fifth of the time that torch and transformers take to import, and they leave no garbage
    from seekling.evaluate.confidence import read_calibration
    from seekling.serve import load_agent
    from seekling.serve.local_model import trained_policy

    gc.freeze()
    gc.enable()
    with load_agent(run, policy=policy, log=lambda line: typer.echo(line, err=True)) as agent:
        yield agent, read_calibration(trained_policy(run, policy)[0])


def _confidence(answer: Answer, calibration: Calibration | None) -> tuple[float | None, bool]:
    """How sure the agent is, and whether that is less than what answers are given at."""
    confidence = calibration.confidence(answer.episode) if calibration is not None else None
    return confidence, calibration is not None and confidence is not None and confidence < calibration.threshold


def _print(answer: Answer, confidence: float | None, *, is_unsure: bool) -> None:
    from seekling.evaluate.evidence import is_abstention

    console = Console(highlight=False, markup=False)
    for turn in answer.episode.turns:
        if turn.calls:
            console.print(turn.action.strip(), style="dim")
    if answer.text is None:
        console.print(f"no answer ({answer.stop_reason.value})", style="bold")
    elif is_unsure or is_abstention(answer.text):
        console.print("not found", style="bold")
        if not is_abstention(answer.text):
            console.print(f"  perhaps: {answer.text} (confidence {confidence:.2f})")
    else:
        console.print(answer.text, style="bold")
        if confidence is not None:
            console.print(f"  confidence {confidence:.2f}")
    for source in answer.sources:
        mark = "*" if source.states_answer else " "
        console.print(f"  {mark} {source.title} [{source.document_id}]")
