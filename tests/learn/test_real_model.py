"""Sampler and learner of the default model: the log-probabilities of sampled tokens, in both precisions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from seekling.corpus.almanac import generate
from seekling.learn.local import LocalLearner
from seekling.models import load_policy
from seekling.models.load import Dtype
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import SampleRequest
from seekling.types import Message, Trajectory
from tests.rollout.policies import encode, needs_bfloat16, run

pytestmark = [pytest.mark.real, pytest.mark.long]

BOUNDS: dict[Dtype, tuple[float, float]] = {"float32": (1e-5, 1e-4), "bfloat16": (0.1, 1.5)}
"""Mean and largest difference, in nats; docs/ENGINE.md states them."""
EPISODES, TURN_TOKENS = 8, 48


def trajectories_of(folder: Path, dtype: Dtype, text: str) -> list[Trajectory]:
    """Two turns with an observation between them, of groups of four, sampled at temperature 1."""
    model, tokenizer = load_policy(folder, dtype=dtype)
    sampler = LocalSampler(model, tokenizer, in_flight=EPISODES, episode_tokens=1024, draft_tokens=0)
    renderer = Renderer(tokenizer)

    async def episode(number: int) -> Trajectory:
        asked = text[2000 * (number // 4) :][:1200]
        ids = renderer.prompt([Message("user", f"Summarize: {asked}")])
        is_action, logprobs = [False] * len(ids), [0.0] * len(ids)
        for turn in range(2):
            sample = await sampler.sample(SampleRequest(number, tuple(ids), TURN_TOKENS, seed=2 * number + turn))
            observation = encode(tokenizer, text[9000 + 500 * number :][:400]) if turn == 0 else ()
            ids = [*ids, *sample.token_ids, *observation]
            is_action += [True] * len(sample.token_ids) + [False] * len(observation)
            logprobs += [*sample.logprobs, *([0.0] * len(observation))]
        sampler.close_session(number)
        return Trajectory(np.asarray(ids, np.int64), np.asarray(is_action), np.asarray(logprobs, np.float32))

    async def everything() -> list[Trajectory]:
        return list(await asyncio.gather(*(episode(number) for number in range(EPISODES))))

    return run(everything())


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_the_learner_finds_the_log_probabilities_that_the_sampler_recorded(real_model_dir, tmp_path, dtype):
    generate(150, 0, tmp_path / "almanac")
    text = (tmp_path / "almanac" / "corpus.jsonl").read_text(encoding="utf-8")
    trajectories = trajectories_of(real_model_dir, dtype, text)
    learner = LocalLearner(load_policy(real_model_dir, dtype=dtype)[0], row_tokens=2048)
    found = learner.logprobs(trajectories)
    recorded = np.concatenate([each.logprobs_T[each.train_mask_T] for each in trajectories])
    scored = np.concatenate([own[each.train_mask_T] for own, each in zip(found, trajectories, strict=True)])
    difference, (mean, most) = np.abs(scored - recorded), BOUNDS[dtype]
    print(f"{dtype}: {len(difference)} tokens, mean {difference.mean():.2g}, largest {difference.max():.2g} nats")
    assert len(difference) > EPISODES * TURN_TOKENS
    assert difference.mean() < mean
    assert difference.max() < most
