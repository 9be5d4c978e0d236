"""Our side of `grpo_step.py`: the product's own training loop over a fixed workload, in a process of its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from grpo_workload import Stopwatch, Texts, Workload
from transformers.utils import get_json_schema

from seekling.config import EnvConfig, LossConfig, OptimizerConfig, RlConfig
from seekling.env.environment import SearchEnv
from seekling.env.protocol import Action, ToolsProtocol
from seekling.env.protocol.stopping import StopRule
from seekling.env.tools import Tool
from seekling.learn.batch import Batch
from seekling.learn.local import LocalLearner
from seekling.learn.loss import clipped_policy_loss
from seekling.learn.rl import RlRun, train
from seekling.models import load_model, load_policy
from seekling.pipeline.sync import InMemorySync
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import Sample, SampleRequest
from seekling.types import Episode, EpisodeRecord, Message, Question, Reward


class SearchesAlways(ToolsProtocol):
    """Reads every turn as a search; the workload decides which turn is the last."""

    def prompt(self, question: Question) -> list[Message]:
        """The question alone, as the peer's data set has it."""
        return [Message("user", question.question)]

    def parse(self, text: str) -> Action:
        """A search, whatever was written."""
        return self.search_action("query")


class FixedLengths(LocalSampler):
    """Gives every turn the workload's number of tokens. An episode's last turn ends it as cut short."""

    def __init__(self, *given: Any, turns: Sequence[Sequence[int]], **settings: int) -> None:
        super().__init__(*given, **settings)
        self._eos_ids = frozenset()  # every length is forced, as on the peer's side
        self._turns = turns
        self._turn_of: dict[int, int] = {}

    async def sample(self, request: SampleRequest) -> Sample:
        """So many tokens as the workload says."""
        number = self._turn_of.get(request.session, 0)
        self._turn_of[request.session] = number + 1
        turns = self._turns[(request.session - 1) % len(self._turns)]
        sample = await super().sample(replace(request, max_new_tokens=turns[number], stops=StopRule()))
        return replace(sample, finish="length" if number + 1 == len(turns) else "stop")


def make_environment(work: Workload, texts: Texts, renderer: Renderer, schema: dict) -> SearchEnv:
    """One tool, which sleeps and returns a text of fixed length."""

    def search(query_list: list[str]) -> str:
        time.sleep(work.search_s)
        return texts.text(7, work.observation_tokens)

    function = schema["function"]
    tool = Tool("search", function["description"], function["parameters"], search, may_wait=work.search_s > 0)
    config = EnvConfig(protocol="tools", max_turns=9, observation_tokens=work.observation_tokens + 40)
    protocol = SearchesAlways(config, {"search": tool}, native_tools=True)
    return SearchEnv(protocol, {"search": tool}, config, count_tokens=renderer.count_tokens)


def write_check(
    work: Workload, out: Path, learner: LocalLearner, roller: Roller, questions: Sequence[Question], slot_tokens: int
) -> None:
    """Two episodes, their log-probabilities and the norm of their gradient, for the peer to compare with."""
    decoding = Decoding(turn_tokens=96, episode_tokens=slot_tokens)
    (group,) = roller.rollout(questions[:1], decoding, group_size=2, seed=1)
    advantages = np.asarray([1.0, -0.5])
    learner.forward_backward(Batch(group.trajectories, advantages), clipped_policy_loss)
    gradients = [master.grad for master in learner._masters.values() if master.grad is not None]
    norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients])))
    learner._optimizer.zero_grad(set_to_none=True)
    episodes = [
        {"ids": t.token_ids_T.tolist(), "mask": t.train_mask_T.tolist(), "logprobs": logprobs_T.tolist()}
        for t, logprobs_T in zip(group.trajectories, learner.logprobs(group.trajectories), strict=True)
    ]
    check = {"episodes": episodes, "advantages": advantages.tolist(), "grad_norm": norm}
    (out / f"check-{work.dtype}.json").write_text(json.dumps(check), encoding="utf-8")


def search(query_list: list[str]) -> str:
    """Search the corpus.

    Args:
        query_list: the queries

    Returns:
        passages
    """
    raise NotImplementedError("described only; the environment has its own")


def main() -> None:
    """Run the steps; write what was measured, and the first step's data for the peer to check."""
    work, out, row_tokens = Workload.read(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(work.threads)
    model, tokenizer = load_policy(work.model, dtype=work.dtype, device=work.device)  # type: ignore[arg-type]
    schema = get_json_schema(search)
    renderer = Renderer(tokenizer, tools=[schema])
    texts = Texts(tokenizer, work.corpus)
    env = make_environment(work, texts, renderer, schema)
    episodes = work.questions * work.group
    questions = [Question(str(n), texts.text(n, work.prompt_tokens), ("",)) for n in range(work.questions)]
    prompt_tokens = max(len(renderer.prompt(env.protocol.prompt(each))) for each in questions)
    slot_tokens = prompt_tokens + work.most_tokens
    sampler = FixedLengths(model, tokenizer, turns=work.turns, in_flight=min(episodes, 64), episode_tokens=slot_tokens)
    roller = Roller(env, sampler, renderer)
    # As the peer: weights that train have the file's digits, the forward pass has the measured dtype's.
    trained, _ = load_policy(work.model, dtype="float32", device=work.device)  # type: ignore[arg-type]
    learner = LocalLearner(trained, row_tokens=row_tokens, dtype=getattr(torch, work.dtype))
    config = RlConfig(
        steps=work.steps, questions_per_step=work.questions, group_size=work.group,
        learning_rate=work.learning_rate, optimizer=OptimizerConfig(warmup_steps=0), loss=LossConfig(clip_high=0.2),
    )  # fmt: skip
    watch, rewarded = Stopwatch(work.device), iter(range(10**9))

    def reward(episode: Episode, question: Question) -> Reward:
        return Reward(float((next(rewarded) % 4) ** 2), {})

    def on_step(step: int, metrics: Mapping[str, float], records: list[EpisodeRecord]) -> None:
        watch.stop()
        print(f"  ours, step {step}: " + ", ".join(f"{key} {value:.4g}" for key, value in metrics.items()), flush=True)
        watch.start()

    write_check(work, out, learner, roller, questions, slot_tokens)
    if work.steps == 0:
        return
    watch.start()
    decoding = Decoding(turn_tokens=96, episode_tokens=slot_tokens)
    run, sync = RlRun(questions, config, seed=0), InMemorySync(load_model)
    train(learner, sampler, roller, run, sync=sync, decoding=decoding, reward=reward, on_step=on_step)
    (out / "ours.json").write_text(json.dumps(asdict(watch.measured())), encoding="utf-8")


if __name__ == "__main__":
    main()
