"""`seekling ask` and `seekling chat`: questions to a trained agent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from seekling.cli.options import AsJson, Policy
from seekling.errors import DataError, InfrastructureError
from seekling.text import printable
from seekling.types import Json, Turn

if TYPE_CHECKING:
    from seekling.serve import Answer, Asker

Run = Annotated[Path, typer.Argument(help="Folder of a finished run, such as runs/demo.")]
Trace = Annotated[bool, typer.Option("--trace", help="Show whole thoughts, actions and what came back.")]


def command(
    run: Run,
    question: Annotated[str, typer.Argument(help="What to ask.")],
    policy: Policy = "",
    trace: Trace = False,
    as_json: AsJson = False,
) -> None:
    """Ask a trained agent: its searches, its answer and the sentences it stands on."""
    if not question.strip():
        raise typer.BadParameter("the text is empty; ask something", param_hint="'QUESTION'")
    with _opened(run, policy) as asker:
        asyncio.run(_answer(asker, question, trace=trace, as_json=as_json))


def chat(run: Run, policy: Policy = "", trace: Trace = False, as_json: AsJson = False) -> None:
    """Ask a trained agent question after question; each may lean on the last.

    Ctrl-C gives a question up; an empty line or Ctrl-D ends the conversation. With --json each answer is one line.
    """
    with contextlib.suppress(ImportError):  # on Windows
        import readline  # noqa: F401  (arrow keys and earlier questions at the prompt)

    before: list[tuple[str, str]] = []
    with _opened(run, policy) as asker, contextlib.suppress(EOFError):
        while question := input("" if as_json else "> ").strip():
            try:
                answer = asyncio.run(_answer(asker, question, before=before, trace=trace, as_json=as_json))
            except KeyboardInterrupt:
                typer.echo("given up", err=as_json)
                continue
            except (DataError, InfrastructureError) as error:  # of this question: the next may do
                typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
                continue
            before.append((answer.question, answer.text or "unknown"))


@contextlib.contextmanager
def _opened(run: Path, policy: str) -> Iterator[Asker]:
    gc.disable()  # a fifth of the time that torch and transformers take to import, and they leave no garbage
    from seekling.serve import open_asker

    gc.freeze()
    gc.enable()
    # One question at a time: that needs one cache.
    with open_asker(run, policy=policy, in_flight=1, log=lambda line: typer.echo(line, err=True)) as asker:
        yield asker


def _row(question: str, answer: Answer) -> dict[str, Json]:
    """All of an answer, as JSON."""
    plain = {name: getattr(answer, name) for name in ("is_found", "confidence", "promise", "threshold")}
    return {
        "question": question,
        "asked": answer.question,
        "answer": answer.text,
        **plain,
        "stop_reason": answer.stop_reason.value,
        "quotes": [asdict(quote) for quote in answer.quotes],
        "sources": [asdict(source) for source in answer.sources],
        "searches": list(answer.searches),
        "turns": [
            {"kind": turn.kind, "action": turn.action, "observation": turn.observation} for turn in answer.episode.turns
        ],
    }


async def _answer(
    asker: Asker, question: str, *, before: Sequence[tuple[str, str]] = (), trace: bool, as_json: bool
) -> Answer:
    """Print what there is to say of a question, for people or for programs."""
    if not as_json:
        return await _show(asker, question, before=before, trace=trace)
    answer = await asker.ask(question, before=before)
    typer.echo(json.dumps(_row(question, answer), ensure_ascii=False))
    return answer


class _Terminal(Console):
    """A console that no text of a document or model can steer."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """See `Console.print`."""
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **settings)


async def _show(asker: Asker, question: str, *, before: Sequence[tuple[str, str]] = (), trace: bool) -> Answer:
    """Print turns as they happen, then the answer."""
    console = _Terminal(highlight=False, markup=False, soft_wrap=True)
    async with contextlib.aclosing(asker.stream(question, before=before)) as said:
        async for each in said:
            if not isinstance(each, Turn):
                answer = each
            elif trace or each.calls:
                console.print(each.action.strip(), style="dim")
                if trace:
                    console.print(each.observation.strip(), style="dim italic")
    _print_answer(console, answer, question)
    return answer


def _print_answer(console: Console, answer: Answer, question: str) -> None:
    from seekling.evaluate.evidence import is_abstention

    sure = "" if answer.confidence is None else f" (confidence {answer.confidence:.2f})"
    if sure and answer.threshold is None:
        sure = f"{sure[:-1]}, nothing promised: check the quotes)"
    elif sure and not answer.is_found:
        sure = f"{sure[:-1]}; {answer.threshold:.2f} keeps the promise of {answer.promise:.0%} right answers)"
    if answer.question != question:
        console.print(f"asked: {answer.question}", style="dim")
    if answer.is_found:
        console.print(answer.text, style="bold", end="")
        console.print(sure)
    elif answer.text is None:
        console.print(f"no answer ({answer.stop_reason.value})", style="bold")
    else:
        console.print("not found", style="bold")
        if not is_abstention(answer.text):
            console.print(f"  perhaps: {answer.text}{sure}")
    for quote in answer.quotes:
        place = ", ".join(part for part in (quote.title or quote.document_id, quote.section, quote.link) if part)
        console.print(f'  "{quote.text}"')
        console.print(f"    {place}")
    if not answer.is_found:
        console.print("  looked for: " + ("; ".join(answer.searches) or "nothing"))
    for source in answer.sources:
        mark = "*" if source.states_answer else " "
        console.print(f"  {mark} {source.title} [{source.document_id}]", style="dim")
