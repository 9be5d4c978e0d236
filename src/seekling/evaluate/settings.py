"""What the figures of an evaluation depend on besides the policy and the questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seekling.config import Recipe

Mode = Literal["search", "closed-book", "gold-passage"]
"""The recipe's own game, or one of its bounds (`evaluate.bounds`)."""


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """How actions are sampled."""

    temperature: float
    """0 is greedy."""
    top_p: float
    turn_tokens: int
    episode_tokens: int
    min_p: float = 0.0
    thought_tokens: int = 0
    """New tokens inside thoughts per turn, at most; 0 is no limit of their own."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What is searched, and how much of it comes back."""

    retrieval: str
    top_k: int
    max_searches: int
    """Retrieval calls per episode; 0 is no limit besides the turns."""
    observation_tokens: int = 0
    """Budget of one observation; 0 is unknown."""
    encoder: str = ""
    """Of a dense or hybrid index."""
    num_passages: int = 0
    """Size of the index; 0 is unknown."""
    failing_share: float = 0.0
    """Share of the questions whose first search was made to fail."""


@dataclass(frozen=True, kw_only=True)
class EvalSettings(DecodingSettings, SearchSettings):
    """All of it. Defaults are for files of older versions."""

    protocol: str
    max_generations: int
    """The most turns an episode can have, a forced last answer included."""
    max_searching_turns: int
    """How many of these can search and still be answered from. Systems call one or the other "max_turns"."""
    model: str = ""
    """What was evaluated: a served model's name, or the model's spec."""
    endpoint: str = ""
    """Address of the served model; empty for a local one."""

    @staticmethod
    def from_recipe(
        recipe: Recipe, *, model: str = "", endpoint: str = "", num_passages: int = 0, mode: Mode = "search"
    ) -> EvalSettings:
        """The settings under which a recipe evaluates its own model, or another one that is served at an endpoint."""
        env, rollout = recipe.evaluated.env, recipe.evaluated.rollout
        retrieval = "remote" if recipe.retrieval.url else recipe.retrieval.index.kind
        return EvalSettings(
            protocol=env.protocol if mode == "search" else mode,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            min_p=rollout.min_p,
            turn_tokens=rollout.turn_tokens,
            episode_tokens=rollout.episode_tokens,
            thought_tokens=0 if endpoint else recipe.rollout.thought_tokens,  # of a served model no tokens are seen
            max_generations=env.num_generations if mode == "search" else 1,
            max_searching_turns=env.num_useful_searches,
            max_searches=env.max_searches,
            observation_tokens=env.observation_tokens,
            failing_share=env.failing_share,
            retrieval=retrieval,
            top_k=recipe.retrieval.top_k,
            encoder="" if retrieval in ("remote", "bm25") else recipe.retrieval.index.encoder,
            num_passages=num_passages,
            model=model or recipe.model.spec,
            endpoint=endpoint,
        )

    def describe(self) -> str:
        """Decoding and both turn counts in words, for tables."""
        decoding = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}, top-p {self.top_p:g}"
        if self.temperature and self.min_p:
            decoding += f", min-p {self.min_p:g}"
        if self.protocol in ("closed-book", "gold-passage"):
            return f"{self.protocol}, {decoding}, 1 generation, no search"
        return (
            f"{self.protocol}, {decoding}, up to {self.max_generations} generations of which "
            f"{self.max_searching_turns} can search and be followed by an answer, {self.retrieval} top {self.top_k}"
            + (f", first search of {100 * self.failing_share:g} % made to fail" if self.failing_share else "")
        )
