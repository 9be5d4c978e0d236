"""How many turns a setting allows, in words; published systems count and treat mistakes in other ways.

"max_turns" means different things: Search-R1's 4 is up to 4 searches and a fifth generation for the answer; slime's 2
is one useful search, since the second generation must answer. Ours counts generations, the forced answer not counted.

All three let the first action of a turn count; only tinker ends an episode at an unreadable one.

What these settings do not copy: Search-R1 looks into thoughts (so it also acts in one that is never closed), cuts
observations from the right and lets a score find answers in the prompt; tinker gives an unreadable episode a reward of
-0.1 and ours is a matter of the reward function.

Source: Search-R1 (arXiv:2503.09516) and the two projects' public code.
"""

from __future__ import annotations

from seekling.config import EnvConfig


def num_generations(config: EnvConfig) -> int:
    """How often the model writes in an episode, at most."""
    return config.max_turns + config.forced_answer


def num_useful_searches(config: EnvConfig) -> int:
    """In how many turns a search can still be followed by an answer; the last generation's search helps nobody."""
    turns = num_generations(config) - 1
    return min(turns, config.max_searches) if config.max_searches else turns


def describe_limits(config: EnvConfig) -> str:
    """Both counts in words, for logs and reports."""
    forced = "the last only for an answer" if config.forced_answer else "none forced to answer"
    return (
        f"{config.protocol}: up to {num_generations(config)} generations ({forced}), "
        f"of which {num_useful_searches(config)} can search and be followed by an answer"
    )
