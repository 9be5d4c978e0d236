"""A model as a policy in an environment: sampler, renderer, environment and sandbox put together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from seekling.config import Recipe
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.sandbox import open_sandbox
from seekling.env.tools import all_tools
from seekling.models import load_policy
from seekling.retrieval.library import Library
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer


@dataclass(frozen=True, slots=True)
class Agent:
    """Everything that turns questions into episodes."""

    env: SearchEnv
    renderer: Renderer
    sampler: LocalSampler
    roller: Roller
    tokenizer: PreTrainedTokenizerBase
    sandbox_layers: tuple[str, ...]


@contextlib.contextmanager
def open_agent(recipe: Recipe, library: Library, model_dir: Path) -> Iterator[Agent]:
    """Load the model and open what it needs; the sandbox is closed at the end.

    Args:
        recipe: its model, env, sandbox, retrieval and rollout sections.
        library: what the tools search.
        model_dir: a directory that `resolve_model` returned.
    """
    model, tokenizer = load_policy(model_dir, dtype=recipe.model.dtype)
    tools = all_tools(library, recipe.retrieval.top_k, recipe.env.tools)
    protocol = make_protocol(recipe.env, tools, native_tools=_template_knows_tools(tokenizer))
    renderer = Renderer(tokenizer, tools=protocol.tool_schemas() if protocol.native_tools else ())
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(open_sandbox(recipe.sandbox)) if protocol.name == "code" else None
        env = SearchEnv(protocol, tools, recipe.env, sandbox=sandbox, count_tokens=renderer.count_tokens)
        sampler = LocalSampler(
            model,
            tokenizer,
            in_flight=recipe.rollout.in_flight,
            episode_tokens=recipe.rollout.episode_tokens,
            cache_bytes=recipe.rollout.cache_bytes,
        )
        roller = Roller(env, sampler, renderer, in_flight=sampler.num_slots)
        yield Agent(env, renderer, sampler, roller, tokenizer, sandbox.layers if sandbox is not None else ())


def training_decoding(recipe: Recipe) -> Decoding:
    """How training episodes are drawn."""
    rollout = recipe.rollout
    return Decoding(rollout.turn_tokens, rollout.episode_tokens, rollout.temperature, rollout.top_p)


def eval_decoding(recipe: Recipe) -> Decoding:
    """How evaluation episodes are drawn."""
    return Decoding(
        recipe.rollout.turn_tokens, recipe.rollout.episode_tokens, recipe.eval.temperature, recipe.eval.top_p
    )


def _template_knows_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template describes tools and writes calls as `<tool_call>` JSON, as Qwen's does."""
    template = tokenizer.chat_template
    return isinstance(template, str) and "tools" in template and "<tool_call>" in template
