"""An agent: model, sampler, renderer, environment and sandbox put together, and the one question people ask it.

Used by every stage of a run, and by `seekling ask`. It does not train and has no web server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from seekling.config import Recipe
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.sandbox import Sandbox
from seekling.env.tools import all_tools
from seekling.evaluate.confidence import Calibration, read_calibration
from seekling.kernels.backend import use_kernels
from seekling.models import load_policy, pick_dtype, resolve_model
from seekling.retrieval.library import Library, open_library
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import Sampler, takes_vllm
from seekling.serve.asking import Answer, Asker
from seekling.serve.local_model import recipe_of_run, rounds_weights, trained_policy


@dataclass(frozen=True, slots=True)
class Agent:
    """Everything that turns questions into episodes."""

    env: SearchEnv
    renderer: Renderer
    sampler: Sampler
    roller: Roller
    tokenizer: PreTrainedTokenizerBase
    library: Library
    recipe: Recipe
    sandbox_layers: tuple[str, ...]
    calibration: Calibration | None = None
    """Of its policy's confidence."""

    def asker(self) -> Asker:
        """What asks as held-out questions are asked, which is greedily unless the recipe says otherwise."""
        env = self.env.with_config(self.recipe.evaluated.env)
        return Asker(
            self.roller.over(env),
            self.library,
            eval_decoding(self.recipe),
            num_slots=self.sampler.num_slots,
            may_wait=env.may_wait,
            seed=self.recipe.seed,
            calibration=self.calibration,
            folder=self.recipe.data.corpus,
        )

    def ask(self, question: str) -> Answer:
        """Answer one question; blocks until it is answered. Raises InfrastructureError."""
        with self.asker() as asker:
            return asker.submit(question).result()


OpenSampler = Callable[[Recipe, Path], tuple[Sampler, PreTrainedTokenizerBase]]
"""A recipe and a model directory -> a sampler of that model, and its tokenizer."""


@contextlib.contextmanager
def open_agent(
    recipe: Recipe, library: Library, model_dir: Path, open_sampler: OpenSampler | None = None
) -> Iterator[Agent]:
    """Load the model of a directory and open what it needs; the sandbox is closed at the end.

    `open_sampler` says where samples come from; None: from this process, with what the recipe names.
    """
    tools = all_tools(library, recipe.retrieval.top_k, recipe.env.tools)
    with contextlib.ExitStack() as stack:
        sampler, tokenizer = (open_sampler or _open_sampler)(recipe, model_dir)
        stack.callback(sampler.close)
        protocol = make_protocol(recipe.env, tools, native_tools=_template_knows_tools(tokenizer))
        renderer = Renderer(tokenizer, tools=protocol.tool_schemas() if protocol.native_tools else ())
        sandbox = stack.enter_context(Sandbox(recipe.env.sandbox)) if protocol.name == "code" else None
        env = SearchEnv(protocol, tools, recipe.env, sandbox=sandbox, count_tokens=renderer.count_tokens)
        roller = Roller(env, sampler, renderer)
        layers = sandbox.layers if sandbox is not None else ()
        yield Agent(env, renderer, sampler, roller, tokenizer, library, recipe, layers)


def _open_sampler(recipe: Recipe, model_dir: Path) -> tuple[Sampler, PreTrainedTokenizerBase]:
    """The sampler that a recipe names, and the model's tokenizer."""
    use_kernels(recipe.model.kernels)
    is_ours = not takes_vllm(recipe)
    device = recipe.model.device if is_ours else "cpu"  # vLLM puts its own where it runs
    dtype = pick_dtype(recipe.model.dtype, recipe.model.device)  # the learner's too
    model, tokenizer = load_policy(model_dir, dtype=dtype, device=device)
    if is_ours:
        return make_sampler(recipe, model, tokenizer), tokenizer
    from seekling.rollout.vllm_sampler import VllmSampler

    return VllmSampler(model_dir, model, tokenizer, **_sampler_settings(recipe)), tokenizer


def make_sampler(recipe: Recipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LocalSampler:
    """The in-process engine as a recipe's rollout section describes it."""
    settings, eight_bits = _sampler_settings(recipe), recipe.rollout.weight_bits == 8
    return LocalSampler(model, tokenizer, draft_tokens=recipe.rollout.draft_tokens, eight_bits=eight_bits, **settings)


def _sampler_settings(recipe: Recipe) -> dict[str, int]:
    in_flight, cache_bytes = recipe.rollout.in_flight, recipe.rollout.cache_bytes
    return {"in_flight": in_flight, "episode_tokens": recipe.cache_tokens, "cache_bytes": cache_bytes}


@contextlib.contextmanager
def load_agent(
    run: Path | str, *, policy: str = "", in_flight: int = 1, log: Callable[[str], None] = lambda line: None
) -> Iterator[Agent]:
    """Open the agent that a run trained: its best policy, its protocol, its index.

    Args:
        run: a run folder, such as `runs/demo`.
        policy: another than the best; see `trained_policy`.
        in_flight: questions at once; the recipe's rollout.cache_bytes may lower it.
        log: told which policy it is.

    Raises:
        ConfigError: the folder is not a run, or has no such policy.
        IndexMismatchError: its index is missing or damaged.
    """
    folder = Path(run)
    recipe = recipe_of_run(folder)
    use_kernels(recipe.model.kernels)
    bits = recipe.rollout.weight_bits
    if bits == "auto" and rounds_weights(recipe.model.dtype, recipe.model.device):
        bits = 8
    # Our own engine: the machine that asks may have no vLLM. Each question at once takes a cache.
    rollout = recipe.rollout.model_copy(update={"sampler": "engine", "in_flight": in_flight, "weight_bits": bits})
    recipe = recipe.model_copy(update={"rollout": rollout})
    model_dir, words = trained_policy(folder, policy)
    log(f"policy: {words}")
    library = open_library(recipe.retrieval.folder(folder), recipe.retrieval)
    with open_agent(recipe, library, resolve_model(str(model_dir))) as agent:
        yield replace(agent, calibration=read_calibration(model_dir))


@contextlib.contextmanager
def open_asker(
    run: Path | str, *, policy: str = "", in_flight: int = 16, log: Callable[[str], None] = lambda line: None
) -> Iterator[Asker]:
    """Open a run's agent to be asked many questions at once; see `load_agent`."""
    with load_agent(run, policy=policy, in_flight=in_flight, log=log) as agent, agent.asker() as asker:
        yield asker


def training_decoding(recipe: Recipe) -> Decoding:
    """How training episodes are drawn."""
    rollout = recipe.rollout
    return Decoding(
        rollout.turn_tokens,
        rollout.episode_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
        temperature_range=rollout.temperature_range or None,
        thought_tokens=rollout.thought_tokens,
    )


def eval_decoding(recipe: Recipe) -> Decoding:
    """How evaluation episodes are drawn."""
    return training_decoding(recipe.evaluated)


def _template_knows_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template describes tools and writes calls as `<tool_call>` JSON, as Qwen's does."""
    template = tokenizer.chat_template
    return isinstance(template, str) and "tools" in template and "<tool_call>" in template
