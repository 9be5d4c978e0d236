"""How well guessing ahead went, from finished episodes."""

from __future__ import annotations

from collections.abc import Sequence

from seekling.types import Episode

DRAFTED = "drafted_tokens"
ACCEPTED = "accepted_tokens"
"""Names in the usage of an episode."""


def draft_rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Rates over all tokens of some episodes.

    Args:
        episodes: whose usage says how many tokens were guessed ahead, and how many of them were right.

    Returns:
        `draft_acceptance`, guessed tokens that sampling would have drawn anyway by guessed tokens, and
        `drafted_per_token`, guessed tokens by sampled ones; nothing where nothing was guessed.
    """
    drafted = sum(each.usage.get(DRAFTED, 0.0) for each in episodes)
    if not drafted:
        return {}
    accepted = sum(each.usage.get(ACCEPTED, 0.0) for each in episodes)
    sampled = sum(turn.num_action_tokens for each in episodes for turn in each.turns)
    return {"draft_acceptance": accepted / drafted, "drafted_per_token": drafted / sampled}
