"""One side of `generation.py` in a process of its own; only that side's library is imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from generation import GenerationWork
from grpo_workload import Stopwatch

Rows = list[list[int]]
Turn = Callable[[Rows, int], Rows]
"""(conversations so far, number of the turn) -> the tokens sampled behind them. Turn 0 begins with empty caches."""


def ours(work: GenerationWork) -> tuple[Turn, Callable[[], str]]:
    """The product's sampler."""
    import asyncio

    import torch

    from seekling.models import load_policy
    from seekling.rollout.engine.local import LocalSampler
    from seekling.rollout.sampler import Sample, SampleRequest

    torch.set_num_threads(work.threads)
    model, tokenizer = load_policy(work.model, dtype=work.dtype)  # type: ignore[arg-type]
    sampler = LocalSampler(
        model, tokenizer, in_flight=len(work.prompts), episode_tokens=work.episode_tokens, cache_bytes=10**11,
        draft_tokens=work.draft_tokens,
    )  # fmt: skip
    sampler._eos_ids = frozenset()  # lengths are fixed on all sides

    async def sample_all(rows: Rows, number: int) -> list[Sample]:
        requests = [
            SampleRequest(n, tuple(ids), work.turn_tokens, temperature=work.temperature, seed=1000 * n + number)
            for n, ids in enumerate(rows)
        ]
        return await asyncio.gather(*map(sampler.sample, requests))

    def turn(rows: Rows, number: int) -> Rows:
        if number == 0:
            for session in range(len(rows)):
                sampler.close_session(session)
            sampler.release_caches()
        return [list(each.token_ids) for each in asyncio.run(sample_all(rows, number))]

    def note() -> str:
        stats = sampler.stats
        share = stats.accepted_tokens / max(stats.drafted_tokens, 1)
        return f", drafts {stats.drafted_tokens / stats.decoded_tokens:.0%} of tokens, {share:.0%} of them accepted"

    return turn, note


def transformers_generate(work: GenerationWork, keep: bool) -> tuple[Turn, Callable[[], str]]:
    """`generate`, with the caches of the turn before or without."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=work.dtype).eval()
    config = model.generation_config
    config.eos_token_id, config.pad_token_id = None, 0  # lengths are fixed on all sides
    sampling = {"do_sample": True, "temperature": work.temperature, "top_k": 0, "top_p": 1.0}
    cache: list[DynamicCache] = []

    @torch.inference_mode()
    def turn(rows: Rows, number: int) -> Rows:
        if keep and number == 0:
            cache[:] = [DynamicCache(config=model.config)]
        ids = torch.tensor(rows)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=work.turn_tokens,
            past_key_values=cache[0] if keep else None, **(sampling if work.temperature else {"do_sample": False}),
        )  # fmt: skip
        return out[:, ids.shape[1] :].tolist()

    return turn, lambda: ""


def vllm(work: GenerationWork) -> tuple[Turn, Callable[[], str]]:
    """The engine of vLLM with automatic prefix caching, in this process so that its CPU time is counted."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }  # fmt: skip
    import torch
    from vllm import LLM, SamplingParams

    engine = LLM(
        work.model, dtype=work.dtype, enforce_eager=not work.compiled, enable_prefix_caching=True, seed=0,
        max_model_len=work.episode_tokens + 16, max_num_seqs=len(work.prompts), disable_log_stats=True,
    )  # fmt: skip
    sampling = SamplingParams(temperature=work.temperature, max_tokens=work.turn_tokens, ignore_eos=True)

    def turn(rows: Rows, number: int) -> Rows:
        if number == 0:
            engine.reset_prefix_cache()
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in rows], sampling, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]

    return turn, lambda: f", {torch.get_num_threads()} threads, {'compiled' if work.compiled else 'eager'}"


def play(work: GenerationWork, turn: Turn) -> Rows:
    """All episodes from prompt to end; the tokens sampled in each."""
    rows, sampled = [list(prompt) for prompt in work.prompts], [list[int]() for _ in work.prompts]
    for number in range(len(work.observations[0]) + 1):
        for n, new in enumerate(turn([list(row) for row in rows], number)):
            assert len(new) == work.turn_tokens, f"{work.side} sampled {len(new)} tokens, not {work.turn_tokens}"
            sampled[n] += new
            rows[n] += new
            if number < len(work.observations[n]):
                rows[n] += work.observations[n][number]
    return sampled


def main() -> None:
    """Play the episodes so many times; write what was measured."""
    work = GenerationWork.read(sys.argv[1])
    sides = {
        "ours": ours, "vllm": vllm, "refill": lambda work: transformers_generate(work, False),
        "kept": lambda work: transformers_generate(work, True),
    }  # fmt: skip
    turn, note = sides[work.side](work)
    watch, sampled = Stopwatch(), [[0]]
    for _ in range(1 + work.repeats):
        watch.start()
        sampled = play(work, turn)
        watch.stop()
    result = {"sampled": sampled, "note": note(), **asdict(watch.measured())}
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
