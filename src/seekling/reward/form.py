"""Rewards that look at the form of an episode besides its answer: Search-R1's with format terms, and tinker's.

Pure exact match teaches nothing about form, and a policy trained on it alone drops what it was asked to write, first
of all the closing think tag. Both rewards are read from the policy's own turns: what stands in the prompt or in a
retrieved page neither counts as an answer nor breaks the form. With `compatible` the text is scored as the published
code does it, quirks included, for comparing curves with theirs.
"""

from __future__ import annotations

import re

from seekling.config import RewardConfig
from seekling.reward.compat import PROMPT_PAIRS, search_r1_exact_match, search_r1_format_score, tinker_answer
from seekling.reward.match import exact_match, normalize_answer
from seekling.types import Episode, Question, Reward, StopReason

_THINK = r"\s*<think>((?:(?!</?(?:think|search|information|answer)>).)*)</think>\s*"
_SEARCH_TURN = re.compile(rf"{_THINK}<search>((?:(?!<).)*)</search>\s*", re.DOTALL)
_ANSWER_TURN = re.compile(rf"{_THINK}<answer>((?:(?!</?answer>).)*)</answer>\s*", re.DOTALL)

_INVALID_PAIRS = "<search> and </search> <answer> and </answer>"
"""What the reference says to the model after an invalid action, as far as its scorer reads it."""


def is_well_formed(episode: Episode) -> bool:
    """Whether every turn is a closed thought and one action, the last of them the answer, and nothing besides."""
    if not episode.turns or episode.turns[-1].kind != "answer":
        return False
    searches = all(turn.kind == "search" and _SEARCH_TURN.fullmatch(turn.action) for turn in episode.turns[:-1])
    return searches and _ANSWER_TURN.fullmatch(episode.turns[-1].action) is not None


def search_r1_reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
    """Exact match with format terms, for episodes of the tags protocol.

    A right answer earns 1, or 1 - `structure` in another form; a wrong one earns `structure` in the right form, and
    `retrieval` on top when a gold stands in an observation, or `final` in another form. No answer earns nothing.

    With `compatible` prompt and response are scored as one text, as the reference does: then an episode without an
    answer is scored as "Beijing", and earns `final`.

    Source: Search-R1's `qa_em_format`, version 0.3 (arXiv:2503.09516 and its code).
    """
    if weights.compatible:
        text = _as_decoded(episode)
        total = search_r1_format_score(text, question.answers, weights)
        em = search_r1_exact_match(text, question.answers)
        return Reward(total, {"em": em, "form": total - em})
    em, is_formed = exact_match(episode.answer, question.answers), is_well_formed(episode)
    if em:
        form = 0.0 if is_formed else -weights.structure
    elif is_formed:
        form = weights.structure + (weights.retrieval if _is_retrieved(episode, question) else 0.0)
    else:
        form = weights.final if episode.answer is not None else 0.0
    return Reward(em + form, {"em": em, "form": form})


def tinker_reward(episode: Episode, question: Question, weights: RewardConfig) -> Reward:
    """Exact match, less `format_coefficient` when the episode ends without one readable answer or is cut off.

    With the published coefficient of 0.1 the values are 1, 0 and -0.1; an episode that outgrew its token budget or
    whose calls could not be read also gets -0.1 there, so all ways of not answering cost the same.

    `compatible` looks for the answer mark in the last message even beside a call.

    Source: tinker-cookbook's search_tool recipe.
    """
    answer = episode.answer
    was_cut = episode.stop_reason in (StopReason.MAX_TOKENS, StopReason.PARSE_ERROR)
    if weights.compatible and episode.turns and not was_cut:
        answer = tinker_answer(episode.turns[-1].action)
    em = exact_match(answer, question.answers)
    form = 0.0 if answer is not None else -weights.format_coefficient
    return Reward(em + form, {"em": em, "form": form})


def _as_decoded(episode: Episode) -> str:
    """The text that Search-R1's scorer would see: its prompt's two pairs of answer tags, then the response."""
    parts = [turn.action + (_INVALID_PAIRS if turn.kind == "invalid" else turn.observation) for turn in episode.turns]
    return f"{PROMPT_PAIRS}\n<|im_start|>assistant\n{''.join(parts)}"


def _is_retrieved(episode: Episode, question: Question) -> bool:
    observed = [normalize_answer(turn.observation) for turn in episode.turns]
    golds = [normalize_answer(gold) for gold in question.answers]
    return any(gold in text for gold in golds if gold for text in observed)
