"""What a batch is made of may change a draw in bfloat16, and how often: the real model, alone and in company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seekling.models import load_policy
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import Sample, SampleRequest
from tests.rollout.policies import encode, needs_bfloat16, sample_all

pytestmark = [pytest.mark.real, pytest.mark.long]

NUM_EPISODES = 16
PLACES = ("Cahors", "Fowey", "Alnwick", "Delft")
PROMPT = (
    "<|im_start|>user\nAnswer the question. Search first where you do not know.\nWho built the harbour of {}, and when?"
    "<|im_end|>\n<|im_start|>assistant\n"
)


def sample_episodes(model_dir: Path, dtype: str, *, at_once: int, draft_tokens: int) -> list[Sample]:
    """Sixteen episodes of four questions, so many at once."""
    model, tokenizer = load_policy(model_dir, dtype=dtype)
    sampler = LocalSampler(model, tokenizer, in_flight=16, episode_tokens=256, draft_tokens=draft_tokens)
    requests = [
        SampleRequest(number, encode(tokenizer, PROMPT.format(PLACES[number % 4])), 48, seed=number)
        for number in range(NUM_EPISODES)
    ]
    samples = []
    for start in range(0, NUM_EPISODES, at_once):
        samples += sample_all(sampler, requests[start : start + at_once])
        for request in requests[start : start + at_once]:
            sampler.close_session(request.session)
    return samples


def flips(alone: list[Sample], together: list[Sample]) -> tuple[int, int, float]:
    """Draws that differ, draws that were compared, and the largest difference of log-probabilities before them.

    After its first difference an episode goes another way, and nothing further of it is compared.
    """
    num_flips = num_compared = 0
    largest = 0.0
    for one, other in zip(alone, together, strict=True):
        length = min(len(one.token_ids), len(other.token_ids))
        differs = np.asarray(one.token_ids[:length]) != np.asarray(other.token_ids[:length])
        equal = int(differs.argmax()) if differs.any() else length
        num_flips += bool(differs.any())
        num_compared += equal + bool(differs.any())
        gaps = np.abs(np.asarray(one.logprobs[:equal]) - np.asarray(other.logprobs[:equal]))
        largest = max(largest, float(gaps.max(initial=0.0)))
    return num_flips, num_compared, largest


@needs_bfloat16
def test_in_bfloat16_company_moves_log_probabilities_by_rounding_only(real_model_dir):
    """Seen: 5 of 508 draws differ with four at once, 7 of 451 with sixteen, and log-probabilities by up to 0.19."""
    alone = sample_episodes(real_model_dir, "bfloat16", at_once=1, draft_tokens=0)
    num_flips, num_compared, largest = flips(
        alone, sample_episodes(real_model_dir, "bfloat16", at_once=4, draft_tokens=0)
    )
    assert num_flips < num_compared / 25
    assert largest < 0.6
    num_flips, num_compared, largest = flips(
        alone, sample_episodes(real_model_dir, "bfloat16", at_once=16, draft_tokens=4)
    )
    assert num_flips < num_compared / 25
    assert largest < 0.6


def test_in_float32_company_changes_no_draw(real_model_dir):
    alone = sample_episodes(real_model_dir, "float32", at_once=1, draft_tokens=0)
    num_flips, num_compared, largest = flips(
        alone, sample_episodes(real_model_dir, "float32", at_once=16, draft_tokens=4)
    )
    assert (num_flips, num_compared) == (0, sum(len(each.token_ids) for each in alone))
    assert largest < 1e-3
