"""The recipe schema: every setting has one home, a type, a default and a reason.

A recipe is a TOML file that lists its differences from these defaults; `section.key=value` on the command line
overrides it in the file's own spelling. Nothing else configures a run.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from seekling.config.base import JudgeConfig, Section, raise_for
from seekling.config.evaluation import EVALUATIONS, EvalConfig, Evaluation, ExpectedConfig
from seekling.config.rl import RlConfig
from seekling.config.training import (
    CheckpointConfig,
    ExpertConfig,
    RolloutConfig,
    ScaleConfig,
    SftConfig,
    TrackingConfig,
)
from seekling.config.world import DataConfig, EnvConfig, ModelConfig, RetrievalConfig
from seekling.errors import ConfigError

RECIPES = {path.stem: path for path in (Path(__file__).parents[1] / "recipes").glob("*.toml")}
"""The recipes that come with the package, by name."""


class Recipe(Section):
    """A whole run: collect -> SFT -> RL -> eval."""

    name: str = "run"
    seed: int = 0
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    env: EnvConfig = EnvConfig()
    rollout: RolloutConfig = RolloutConfig()
    experts: ExpertConfig = ExpertConfig()
    sft: SftConfig = SftConfig()
    rl: RlConfig = RlConfig()
    judge: JudgeConfig = JudgeConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    scale: ScaleConfig = ScaleConfig()
    eval: EvalConfig = EvalConfig()
    tracking: TrackingConfig = TrackingConfig()
    expected: ExpectedConfig = ExpectedConfig()

    @property
    def has_sft(self) -> bool:
        """Whether there are expert episodes to begin with."""
        return bool(self.experts.file or self.experts.num_questions)

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Those of `eval.stages` whose stage there is, in the order of training."""
        has_stage = {"base": True, "sft": self.has_sft, "rl": self.rl.steps > 0}
        return tuple(name for name in EVALUATIONS if name in self.eval.stages and has_stage[name])

    @property
    def evaluated(self) -> Recipe:
        """The recipe with the rules and lengths of held-out evaluation in its sections env and rollout."""
        changes: dict[str, Section] = {
            "env": self.env.model_copy(update=self.eval.env.model_dump(exclude_none=True)),
            "rollout": self.rollout.model_copy(
                update={**self.eval.rollout.model_dump(exclude_none=True), "temperature_range": ()}
            ),
        }
        return self.model_copy(update=changes)

    @property
    def cache_tokens(self) -> int:
        """Tokens of the longest episode of training or evaluation: what the sampler's caches are made for."""
        return max(self.rollout.episode_tokens, self.eval.rollout.episode_tokens or 0)

    @pydantic.model_validator(mode="after")
    def _sections_fit_together(self) -> Recipe:
        return raise_for(self._contradictions(), self)

    def _contradictions(self) -> Iterable[str]:
        rollout, scale, has_rl = self.rollout, self.scale, self.rl.steps > 0
        if self.model.lora_stages != ModelConfig().lora_stages and not self.model.lora_rank:
            yield "model.lora_stages has no effect with model.lora_rank = 0, which trains all weights"
        needed = {"search-r1": "tags", "tinker": "tools"}.get(self.rl.reward.kind)
        if needed and has_rl and self.env.protocol != needed:
            yield (
                f'rl.reward.kind = "{self.rl.reward.kind}" reads the form of env.protocol = "{needed}", not of '
                f'"{self.env.protocol}"; change one of them'
            )
        is_greedy = rollout.temperature == 0 and not rollout.temperature_range
        if has_rl and (is_greedy or rollout.top_p < 1 or rollout.min_p > 0):
            yield (
                f"rollout.temperature = {rollout.temperature:g}, rollout.top_p = {rollout.top_p:g} and rollout.min_p = "
                f"{rollout.min_p:g} draw from another distribution than the one whose gradient RL follows, "
                "softmax(logits / temperature); set a temperature above 0, top_p = 1 and min_p = 0, or rl.steps = 0 to "
                "collect or evaluate only"
            )
        if self.retrieval.index.entries == "titles" and self.env.protocol != "code":
            yield (
                f'retrieval.index.entries = "titles" finds pages, and env.protocol = "{self.env.protocol}" shows '
                "passages; change one of them"
            )
        if rollout.sampler == "vllm" and self.vllm_problem:
            yield self.vllm_problem
        if scale.engine == "ray" and scale.learner_ranks > 1 and has_rl and self.rl.has_critic:
            yield (
                f'rl.advantage.baseline = "gae" trains a critic, whose weights scale.learner_ranks = '
                f"{scale.learner_ranks} cannot divide; set scale.learner_ranks = 1, or another baseline"
            )
        yield from self._staleness_problems()
        problems = list(self._tinker_problems()) if scale.engine == "tinker" else []
        if problems:
            yield 'with scale.engine = "tinker" ' + "; ".join(problems)

    @property
    def runs_ahead(self) -> bool:
        """Whether episodes of coming steps are sampled while a step is learned from."""
        return self.rl.steps > 0 and self.rl.optimizer.max_staleness > 0 and self.scale.engine == "ray"

    def _staleness_problems(self) -> Iterable[str]:
        if not (self.rl.steps and self.rl.optimizer.max_staleness):
            return
        name = f"rl.optimizer.max_staleness = {self.rl.optimizer.max_staleness} samples ahead of learning, "
        if self.scale.engine != "ray":
            yield f'{name}which needs processes that only sample; set scale.engine = "ray", or leave it at 0'
        if self.rl.loss.correction == "none" and self.rl.loss.old_logprobs != "rollout":
            yield f'{name}with weights that are not the learner\'s; set rl.loss.correction = "tis" or "mask"'
        if self.rl.groups.ask_again:
            yield f"{name}before it is known which questions taught something; set rl.groups.ask_again = 0"

    @property
    def vllm_problem(self) -> str:
        """What vLLM would do otherwise than this recipe says; empty: nothing."""
        if self.rollout.draft_tokens not in (0, RolloutConfig().draft_tokens):
            return (
                f"rollout.draft_tokens = {self.rollout.draft_tokens} has no effect with rollout.sampler = "
                '"vllm", which guesses nothing ahead; leave it out'
            )
        for section, settings in (("rollout", self.rollout), ("eval.rollout", self.eval.rollout)):
            if settings.top_p < 1 and settings.min_p > 0:
                return (
                    f'{section}.top_p and {section}.min_p together mean something else with rollout.sampler = "vllm", '
                    "which applies top-p to what min-p has left; set one of them to its default"
                )
        return ""

    def _tinker_problems(self) -> Iterable[str]:
        """What a Tinker service would do otherwise than this recipe says, and what to change."""
        ranks = self.has_sft * [self.model.rank_in("sft")] + (self.rl.steps > 0) * [self.model.rank_in("rl")]
        if not all(ranks):
            yield "adapters alone are trained: set model.lora_rank, such as 32, and leave model.lora_stages as it is"
        if self.model.lora_alpha != ModelConfig().lora_alpha:
            yield f"LoRA's alpha is {ModelConfig().lora_alpha}: leave model.lora_alpha as it is"
        if self.rollout.sampler == "vllm":
            yield 'the service samples: leave rollout.sampler at "auto"'
        if self.rollout.min_p or self.eval.rollout.min_p:
            yield "there is no min_p: set rollout.min_p and eval.rollout.min_p to 0"
        if not self.rl.steps:
            return
        if self.rollout.temperature != 1 or self.rollout.temperature_range:
            yield "log-probabilities are those of temperature 1: set rollout.temperature = 1 and no temperature_range"
        if self.rl.has_critic:
            yield 'there is no critic: set rl.advantage.baseline = "group_mean" or "leave_one_out"'
        if self.rl.optimizer.keep_moments:
            yield "the optimizer starts afresh with RL: set rl.optimizer.keep_moments = false"
        if self.rl.optimizer.stream_minibatches and self.rl.loss.aggregation != "sum":
            yield (
                "gradients cannot be divided once they are there: set rl.optimizer.stream_minibatches = 0, or "
                'rl.loss.aggregation = "sum"'
            )


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a TOML file or one of `RECIPES` by name, and apply `section.key=value` overrides.

    Their values are in TOML spelling; a bare word that is not TOML counts as a string.

    Raises:
        ConfigError: the file is missing or not TOML, a key is unknown, or a value is out of range; lists all problems.
    """
    path = Path(path)
    if not path.is_file():  # a folder of a recipe's name is none
        path = RECIPES.get(str(path), path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"no recipe at {path}; expected a TOML file, or the name of a recipe: {', '.join(sorted(RECIPES))}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); expected a recipe, such as {path}.toml") from None
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
    raise ConfigError("\n  ".join([f"{origin}: {len(lines)} problem(s)", *lines]))


def recipe_to_toml(recipe: Recipe, *, only_changes: bool = False) -> str:
    """Write the settings, or only those that differ from the defaults, as TOML that `load_recipe` reads back."""
    data = recipe.model_dump(mode="json", exclude_defaults=only_changes, exclude_none=True)
    return "\n".join(_toml_lines(data)) + "\n"


def _toml_lines(table: Mapping[str, Any], name: str = "") -> Iterable[str]:
    yield from (f"{key} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, dict))
    for key, value in table.items():
        if value and isinstance(value, dict):
            has_own = any(not isinstance(each, dict) for each in value.values())
            yield from ("", f"[{name}{key}]") if has_own else ()
            yield from _toml_lines(value, f"{name}{key}.")


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
    open_sections: list[tuple[str, type[Section]]] = [("", Recipe)]
    for prefix, section in open_sections:
        for key, info in section.model_fields.items():
            yield prefix + key
            if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
                open_sections.append((f"{prefix}{key}.", info.annotation))


def _describe_problem(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"]) or "recipe"
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return f"{name}: {problem['ctx']['error']}"
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
