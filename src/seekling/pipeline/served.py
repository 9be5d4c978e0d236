"""What asking a served model takes beside the endpoint: its environment, how tokens are counted, whose folder it is."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seekling.config import Recipe
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.sandbox import Sandbox
from seekling.env.tools import all_tools
from seekling.errors import ConfigError, MissingExtraError, ModelError
from seekling.files import write_atomically
from seekling.models import resolve_model
from seekling.pipeline.reporter import Reporter
from seekling.retrieval.library import Library
from seekling.types import Json

CHARS_PER_TOKEN = 4
"""How observations are measured for an endpoint when the recipe's own tokenizer cannot be had."""


@contextlib.contextmanager
def open_env(
    recipe: Recipe, library: Library, count_tokens: Callable[[str], int]
) -> Iterator[tuple[SearchEnv, tuple[str, ...]]]:
    """The recipe's environment and its sandbox's layers; the sandbox is closed at the end."""
    tools = all_tools(library, recipe.retrieval.top_k, recipe.env.tools)
    protocol = make_protocol(recipe.env, tools)
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(recipe.env.sandbox)) if protocol.name == "code" else None
        layers = sandbox.layers if sandbox is not None else ()
        yield SearchEnv(protocol, tools, recipe.env, sandbox=sandbox, count_tokens=count_tokens), layers


def token_counter(recipe: Recipe, reporter: Reporter) -> tuple[Callable[[str], int], str]:
    """How observations are measured: with the small model's tokenizer, so that both see the same ones."""
    import transformers

    try:
        folder = resolve_model(recipe.model.spec, log=reporter.line)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (ModelError, MissingExtraError, OSError, ValueError) as error:
        reporter.line(f"note: observations are measured by {CHARS_PER_TOKEN} characters a token ({error})")
        return (lambda text: math.ceil(len(text) / CHARS_PER_TOKEN)), f"{CHARS_PER_TOKEN} characters a token"
    lock = threading.Lock()  # fast tokenizers refuse to be used by two threads at once

    def count(text: str) -> int:
        with lock:
            return len(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    return count, recipe.model.spec


def claim(path: Path, now: Mapping[str, Json], *, what: str, instead: str) -> None:
    """Note in a file what a folder is used for; an earlier use for something else must not be gone on with.

    Raises:
        ConfigError: the note differs, or cannot be read; says `what` the folder holds and what to do `instead`.
    """
    if not path.exists():
        write_atomically(path, json.dumps(now, indent=1) + "\n")
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); {instead}") from None
    differing = [name for name in now if not isinstance(before, dict) or before.get(name) != now[name]]
    if differing:
        raise ConfigError(f"{path.parent.parent} holds {what} that differs in {', '.join(differing)}; {instead}")
