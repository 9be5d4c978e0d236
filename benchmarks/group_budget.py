"""How long a group of K episodes takes to sample and to learn from within a memory budget: "finding K" of seed 001.

    python benchmarks/group_budget.py [--shape 4b] [--group 24] [--memory-gb 24] [--steps 2] [--device cuda]
        [--lora-rank 16] [--row-tokens 4096] [--in-flight 24] [--prompt-tokens 512] [--observation-tokens 240]
        [--turns 3] [--turn-tokens 48] [--threads 2]

A model of random weights in bfloat16 with adapters, once for sampling and once for learning, one question a step. What
it prints of a step: seconds of sampling, of one rollout and of learning, tokens per second, and the peak of memory,
which it compares with the budget: the process's, or what torch takes of the GPU, which is not given more (the driver's
own share, half a gigabyte or so, comes on top). Where there are several steps the first, which warms up, does not
count.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from grpo_ours import FixedLengths, make_environment, search
from grpo_workload import Stopwatch, Texts, Workload
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel, Qwen3Config
from transformers.utils import get_json_schema

from seekling.config import LossConfig, OptimizerConfig, RlConfig
from seekling.corpus.almanac import generate
from seekling.learn.local import LocalLearner
from seekling.learn.rl import RlRun, train
from seekling.models import load_model, resolve_model
from seekling.pipeline.sync import InMemorySync
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.types import Episode, EpisodeRecord, Question, Reward

SHAPES = {  # Qwen3's
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}


def shape_config(name: str) -> PretrainedConfig:
    """Of the shape's name, with the vocabulary of its family."""
    return Qwen3Config(
        **SHAPES[name], num_key_value_heads=8, head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
        max_position_embeddings=40_960,
    )  # fmt: skip


def make_model(name: str, device: str) -> PreTrainedModel:
    """Random weights, made where they stay."""
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(shape_config(name), dtype=torch.bfloat16)
    return model.eval()


def make_workload(options: argparse.Namespace, corpus: Path) -> Workload:
    """One question a step."""
    return Workload(
        model="", corpus=str(corpus), questions=1, group=options.group, prompt_tokens=options.prompt_tokens,
        observation_tokens=options.observation_tokens,
        turns=((options.turn_tokens,) * options.turns,) * options.group, search_s=0.0, dtype="bfloat16",
        threads=options.threads, steps=options.steps, device=options.device,
    )  # fmt: skip


def run(options: argparse.Namespace, work: Workload) -> tuple[list[Mapping[str, float]], float]:
    """The metrics of each step, and the peak of memory in GB."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("default", log=print))
    model = make_model(options.shape, options.device)
    trained = copy.deepcopy(model)
    renderer, texts = Renderer(tokenizer), Texts(tokenizer, work.corpus)
    env = make_environment(work, texts, renderer, get_json_schema(search))
    questions = [Question("0", texts.text(0, work.prompt_tokens), ("",))]
    slot_tokens = len(renderer.prompt(env.protocol.prompt(questions[0]))) + work.most_tokens
    sampler = FixedLengths(
        model, tokenizer, turns=work.turns, in_flight=options.in_flight, episode_tokens=slot_tokens, cache_bytes=10**11
    )
    learner = LocalLearner(
        trained, lora_rank=options.lora_rank, row_tokens=options.row_tokens, checkpoint_layers=not options.keep_layers
    )
    rewarded = iter(range(10**9))
    config = RlConfig(
        steps=work.steps, questions_per_step=1, group_size=work.group, learning_rate=1e-5,
        optimizer=OptimizerConfig(warmup_steps=0), loss=LossConfig(clip_high=0.2),
    )  # fmt: skip
    watch, found = Stopwatch(options.device), []

    def reward(episode: Episode, question: Question) -> Reward:
        return Reward(float(next(rewarded) % 2), {})

    def on_step(step: int, metrics: Mapping[str, float], records: list[EpisodeRecord]) -> None:
        print(f"step {step}: " + ", ".join(f"{key} {value:.4g}" for key, value in metrics.items()), flush=True)
        found.append(metrics)

    roller = Roller(env, sampler, renderer)
    decoding = Decoding(turn_tokens=96, episode_tokens=slot_tokens)
    run, sync = RlRun(questions, config, seed=0), InMemorySync(load_model)
    train(learner, sampler, roller, run, sync=sync, decoding=decoding, reward=reward, on_step=on_step)
    return found, watch.measured().peak_gb


def main() -> None:
    """Run the steps and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="4b")
    parser.add_argument("--group", type=int, default=24)
    parser.add_argument("--memory-gb", type=float, default=24.0, help="of 1e9 bytes")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--lora-rank", type=int, default=16)
    parser.add_argument("--row-tokens", type=int, default=4096)
    parser.add_argument("--keep-layers", action="store_true", help="do not compute layers twice")
    parser.add_argument("--in-flight", type=int, default=24)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--observation-tokens", type=int, default=240)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--turn-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.memory_gb * 1e9 / total))
    with tempfile.TemporaryDirectory() as folder:
        generate(150, 0, Path(folder) / "almanac")
        found, peak_gb = run(options, make_workload(options, Path(folder) / "almanac" / "corpus.jsonl"))
    counted = found[1:] or found
    sample_s, learn_s = (statistics.median(each[name] for each in counted) for name in ("sample_s", "learn_s"))
    sampled = options.group * options.turns * options.turn_tokens
    print(
        f"{options.shape}, K = {options.group}, {options.device}: {sample_s:.1f} s of sampling, "
        f"{sample_s / options.group:.2f} s per rollout, {sampled / sample_s:.1f} sampled tokens per s; {learn_s:.1f} s "
        f"of learning from {counted[-1]['packed_tokens']:.0f} tokens; {sample_s + learn_s:.1f} s per step; "
        f"peak {peak_gb:.2f} of {options.memory_gb:g} GB"
    )
    if peak_gb > options.memory_gb:
        sys.exit("it does not fit")


if __name__ == "__main__":
    main()
