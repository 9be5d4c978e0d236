"""A trained agent's answers by our engine, a plain transformers loop and llama.cpp: per minute and per CPU-second.

    python benchmarks/serving.py RUN [--users 1 8] [--questions 24] [--threads 1] [--repeats 2] [--sides ours ...]

Every side has the same policy, the same searches, prompts and questions, and the same loop around it; only the sampler
differs. `transformers` is what one writes first: `generate` on the whole conversation, one question at a time, others
wait. `llama-q8` and `llama-16` are llama.cpp (package xllamacpp, which must be installed) on the policy's GGUF of 8 and
of 16 bits, with its prompt cache. Ours has eight bits where the processor has no bfloat16. Decoding is greedy. Each
side runs in a process of its own, sides take turns, and the fastest of the repeats counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from seekling.rollout.sampler import Sample, SampleRequest

Generate = Callable[[SampleRequest], tuple[list[int], bool]]
"""A request -> the tokens that continue it, and whether a stop string ended them."""
SIDES = ("ours", "transformers", "llama-q8", "llama-16")


class BlockingSampler:
    """A sampler over a function that blocks; a thread for each request that is worth having at once."""

    policy_version = 0
    dtype = "torch.float32"

    def __init__(self, generate: Generate, num_slots: int) -> None:
        self.num_slots, self._generate = num_slots, generate

    async def sample(self, request: SampleRequest) -> Sample:
        """Continue a prompt; nobody reads the probabilities, so there are none."""
        ids, is_stopped = await asyncio.to_thread(self._generate, request)
        finish = "stop" if is_stopped else "length" if len(ids) >= request.max_new_tokens else "eos"
        return Sample(tuple(ids), (0.0,) * len(ids), finish, 0)

    def teach_drafts(self, trajectories: Iterable[Any]) -> None:
        """Guesses nothing ahead."""

    def close_session(self, session: int) -> None:
        """Keeps nothing."""

    def release_caches(self) -> None:
        """Keeps nothing."""

    def close(self) -> None:
        """Keeps nothing."""


def transformers_loop(recipe: Any, model_dir: Path) -> tuple[BlockingSampler, Any]:
    """`generate` over the whole conversation, one request at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteriaList

    from seekling.models import pick_dtype
    from seekling.rollout.sampler import TurnEnd

    dtype = getattr(torch, pick_dtype(recipe.model.dtype, "cpu"))
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    one_at_a_time = threading.Lock()

    @torch.inference_mode()
    def generate(request: SampleRequest) -> tuple[list[int], bool]:
        end, finish = TurnEnd(request, tokenizer, (), request.max_new_tokens), [""]

        def stops(ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            finish[0] = end.add(int(ids[0, -1])) or ""
            return torch.tensor([finish[0] == "stop"])

        prompt = torch.tensor([request.prompt_ids])
        with one_at_a_time:
            ids = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.max_new_tokens, do_sample=False,
                stopping_criteria=StoppingCriteriaList([stops]), pad_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
        return ids[0, len(request.prompt_ids) :].tolist(), finish[0] == "stop"

    return BlockingSampler(generate, 1), tokenizer


def llama_loop(bits: Any, given: argparse.Namespace) -> Callable[[Any, Path], tuple[BlockingSampler, Any]]:
    """llama.cpp's server in this process, without HTTP."""

    def open_sampler(recipe: Any, model_dir: Path) -> tuple[BlockingSampler, Any]:
        import xllamacpp
        from transformers import AutoTokenizer

        from seekling.models.gguf_write import write_gguf

        path, users = Path(given.folder) / f"policy-{bits}.gguf", max(given.users)
        if not path.exists():
            write_gguf(model_dir, path, bits=bits)
        tokenizer, params = AutoTokenizer.from_pretrained(model_dir), xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel, params.n_ctx = users, users * (recipe.rollout.episode_tokens + 64)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
        params.warmup, params.verbosity = True, -1
        server = xllamacpp.Server(params)

        def generate(request: SampleRequest) -> tuple[list[int], bool]:
            done = server.handle_completions(
                {
                    "prompt": list(request.prompt_ids), "n_predict": request.max_new_tokens, "temperature": 0,
                    "stop": list(request.stops.strings), "cache_prompt": True, "id_slot": request.session % users,
                }
            )  # fmt: skip
            text = done["choices"][0]["text"]
            # The reply leaves the stop string out, and does not say which it was: the one whose tag is open.
            is_stopped = done["choices"][0]["finish_reason"] == "stop"
            opened = [end for end in request.stops.strings if text.count(end.replace("/", "")) > text.count(end)]
            stop = opened[-1] if is_stopped and opened else ""
            return tokenizer.encode(text + stop, add_special_tokens=False), bool(stop)

        return BlockingSampler(generate, users), tokenizer

    return open_sampler


def answer(given: argparse.Namespace) -> None:
    """Answer the questions once for each line of commands, a number of users, and write what it took."""
    import torch

    from seekling.corpus.questions import read_questions
    from seekling.retrieval.library import open_library
    from seekling.reward.functions import score_answer
    from seekling.serve.agent import load_agent, open_agent
    from seekling.serve.local_model import recipe_of_run, trained_policy

    torch.set_num_threads(given.threads)
    run = Path(given.run)
    own = run / "corpus" / "test.jsonl"
    path = Path(given.test or (own if own.exists() else recipe_of_run(run).data.train))
    questions = read_questions(path)[: given.questions]
    if given.side == "ours":
        opened = load_agent(run, in_flight=max(given.users))
    else:
        opener = (
            transformers_loop if given.side == "transformers" else llama_loop(8 if "q8" in given.side else 16, given)
        )
        recipe = recipe_of_run(run)
        library = open_library(recipe.retrieval.folder(run), recipe.retrieval)
        opened = open_agent(recipe, library, trained_policy(run)[0], opener)

    async def ask_all(asker: Any, users: int) -> list[Any]:
        gate = asyncio.Semaphore(users)

        async def ask(question: str) -> Any:
            async with gate:
                return await asker.ask(question)

        return await asyncio.gather(*(ask(each.question) for each in questions))

    with opened as agent, agent.asker() as asker:
        asyncio.run(ask_all(asker, max(given.users)))  # compiles, and fills caches that every user shares
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            answers = asyncio.run(ask_all(asker, int(line)))
            times = [time.perf_counter() - wall, time.process_time() - cpu]
            right = sum(score_answer(a.text, q.answers)["em"] for a, q in zip(answers, questions, strict=True))
            print(json.dumps([*times, right, sum(len(each.episode.turns) for each in answers)]), flush=True)


def main() -> None:
    """Start every side in a process of its own, ask them in turn, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--test", default="", help="a question file; default: the run's own")
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        answer(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(given, folder)


def compare(given: argparse.Namespace, folder: str) -> None:
    """The table: a row for each number of users and side."""
    from machine import describe

    print(describe(given.threads, *(["xllamacpp"] if any("llama" in side for side in given.sides) else [])), flush=True)
    running = {side: start(side, folder) for side in given.sides}
    for users in given.users:
        best: dict[str, list[float]] = {}
        for _ in range(given.repeats):
            for side, process in running.items():
                best[side] = min(ask(process, users), best.get(side, [float("inf")]))
        for side, (wall, cpu, right, turns) in best.items():
            ratio = best[given.sides[0]][0] / wall
            print(
                f"{users} users, {side:12} {60 * given.questions / wall:6.1f} answers/min ({ratio:.2f} of "
                f"{given.sides[0]}'s), {cpu / given.questions:5.2f} CPU-s an answer, {right:g} right, {turns:g} turns",
                flush=True,
            )
    for process in running.values():
        process.communicate()


def start(side: str, folder: str) -> subprocess.Popen[str]:
    """A side, ready to be asked."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", folder]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert receive(process) == "ready"
    return process


def ask(process: subprocess.Popen[str], users: int) -> list[float]:
    """Seconds by the clock and of the processor, right answers, turns."""
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
