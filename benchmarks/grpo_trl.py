"""The peer's side of `grpo_step.py`: TRL's GRPOTrainer with tools, in a process of its own.

TRL's code runs unchanged except where lengths are forced: its parser is told that every turn but an episode's last is a
tool call, and generation gets a processor that allows the end token exactly where a turn ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from grpo_workload import Stopwatch, Texts, Workload
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class EndsAt(LogitsProcessor):
    """Each row ends with the end token after its number of tokens, and not before."""

    def __init__(self, lengths: list[int], eos: int, start: int) -> None:
        self._last = torch.tensor(lengths) - 1
        self._eos, self._start = eos, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(B, V) scores with the end token forced or forbidden."""
        ends = self._last.to(scores.device) <= input_ids.shape[1] - self._start
        eos = scores[:, self._eos].clone()
        scores[:, self._eos] = float("-inf")
        scores[ends] = float("-inf")
        scores[ends, self._eos] = eos[ends]
        return scores


class Forced:
    """Which turn each row of a batch is at, recognised by the tokens it holds."""

    def __init__(self, work: Workload, eos: int) -> None:
        self._turns, self._eos = work.turns, eos
        self._so_far: list[tuple[list[int], int]] = []
        self._rows: list[int] = []

    def before_generation(self, prompts: list[list[int]]) -> None:
        """Find the rows that a generation is about."""
        if len(prompts) == len(self._turns) and not any(map(self._known, prompts)):
            self._so_far = [([], 0) for _ in prompts]
            self._rows = list(range(len(prompts)))
        else:
            self._rows = [self._known(prompt)[0] for prompt in prompts]

    def _known(self, prompt: list[int]) -> list[int]:
        return [n for n, (ids, _) in enumerate(self._so_far) if ids and prompt[: len(ids)] == ids]

    def lengths(self) -> list[int]:
        """Tokens that each row of the generation writes."""
        return [self._turns[row][self._so_far[row][1]] for row in self._rows]

    def parse(self, tokenizer: object, ids: list[int], *, prefix: list[int], tools: object) -> dict[str, object]:
        """In place of TRL's parser; called once for each row, in order."""
        row = self._rows.pop(0)
        turn = self._so_far[row][1]
        assert len(ids) == self._turns[row][turn], f"row {row} wrote {len(ids)} tokens, not {self._turns[row][turn]}"
        self._so_far[row] = ([*prefix, *ids], turn + 1)
        message: dict[str, object] = {"role": "assistant", "content": "x"}
        if turn + 1 < len(self._turns[row]):
            function = {"name": "search", "arguments": {"query_list": ["query"]}}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return message


def make_trainer(work: Workload, out: Path, batch: int, pure: bool) -> GRPOTrainer:
    """The trainer, set to do the workload."""
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    texts = Texts(tokenizer, work.corpus)

    def search(query_list: list[str]) -> str:
        """Search the corpus.

        Args:
            query_list: the queries

        Returns:
            passages
        """
        time.sleep(work.search_s)
        return texts.text(7, work.observation_tokens)

    prompts = [[{"role": "user", "content": texts.text(n, work.prompt_tokens)}] for n in range(work.questions)]
    episodes = work.questions * work.group
    is_bf16 = work.dtype == "bfloat16"
    config = GRPOConfig(
        output_dir=str(out / "trl"), use_cpu=work.device == "cpu", report_to=[], save_strategy="no", logging_steps=1,
        max_steps=max(work.steps, 1), num_generations=work.group, per_device_train_batch_size=batch,
        gradient_accumulation_steps=episodes // batch, steps_per_generation=episodes // batch,
        max_completion_length=work.most_tokens, max_tool_calling_iterations=max(map(len, work.turns)) - 1,
        learning_rate=work.learning_rate, lr_scheduler_type="constant", temperature=1.0, beta=0.0,
        gradient_checkpointing=False, bf16=is_bf16 and not pure, shuffle_dataset=False, seed=0,
        model_init_kwargs={"dtype": "bfloat16" if pure else "float32"}, disable_tqdm=True,
    )  # fmt: skip
    rewarded = iter(range(10**9))
    return GRPOTrainer(
        model=work.model,
        reward_funcs=lambda completions, **_: [float((next(rewarded) % 4) ** 2) for _ in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts * max(work.steps, 1)}),
        processing_class=tokenizer,
        tools=[search],
    )


def force(trainer: GRPOTrainer, forced: Forced) -> None:
    """Fix the lengths of this trainer's turns."""
    single_turn: Callable[..., object] = trainer._generate_single_turn
    generate: Callable[..., object] = trainer.model.generate
    eos = trainer._tokenizer.eos_token_id

    def forced_turn(prompt_ids: list[list[int]], *args: object, **options: object) -> object:
        forced.before_generation(prompt_ids)
        return single_turn(prompt_ids, *args, **options)

    def forced_generate(input_ids: torch.Tensor, **options: object) -> object:
        ends = EndsAt(forced.lengths(), eos, input_ids.shape[1])
        return generate(input_ids=input_ids, logits_processor=LogitsProcessorList([ends]), **options)

    trainer._generate_single_turn = forced_turn
    trainer.model.generate = forced_generate
    grpo_trainer.parse_response = forced.parse


def check(trainer: GRPOTrainer, out: Path, dtype: str) -> None:
    """Compare TRL's log-probabilities and gradient norm on our episodes with ours; print both."""
    ours = json.loads((out / f"check-{dtype}.json").read_text(encoding="utf-8"))
    for each in ours["episodes"]:
        each["attended"] = [1] * len(each["ids"])
    start, device = min(each["mask"].index(True) for each in ours["episodes"]), trainer.accelerator.device
    ids, attended, trained, logprobs = (
        pad_sequence([torch.tensor(each[name]) for each in ours["episodes"]], batch_first=True).to(device)
        for name in ("ids", "attended", "mask", "logprobs")
    )
    mask, logprobs = trained[:, start:].long(), logprobs[:, start:]
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    inputs = {
        "prompt_ids": ids[:, :start], "prompt_mask": torch.ones_like(ids[:, :start]), "completion_ids": ids[:, start:],
        "completion_mask": attended[:, start:], "tool_mask": mask, "num_items_in_batch": mask.sum(),
        "advantages": torch.tensor(ours["advantages"], device=device),
    }  # fmt: skip
    model = trainer.model.train()
    theirs, *_ = trainer._get_per_token_logps_and_entropies(model, ids, attended, mask.shape[1])
    difference = ((theirs.detach().float() - logprobs) * mask).abs()
    trainer._compute_loss(model, inputs).backward()
    norm = float(torch.linalg.vector_norm(torch.stack([p.grad.norm().float() for p in model.parameters()])))
    model.zero_grad(set_to_none=True)
    print(
        f"check {dtype}: {int(mask.sum())} trained tokens; log-probabilities differ by {difference.max():.2g} at most, "
        f"{difference.sum() / mask.sum():.2g} on average; gradient norm ours {ours['grad_norm']:.6g}, TRL {norm:.6g}",
        flush=True,
    )
    # Bfloat16 alone moves the norm of so few tokens by up to 4 % from float32's, on either side.
    close, far = (1e-3, 1e-3) if dtype == "float32" else (0.05, 0.5)
    if abs(norm / ours["grad_norm"] - 1) > close or difference.max() > far:
        sys.exit("the two sides do not compute the same thing, so nothing is compared")


def main() -> None:
    """Check, then run the steps and write what was measured."""
    work, out, batch, pure = Workload.read(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "pure"
    torch.set_num_threads(work.threads)
    trainer = make_trainer(work, out, batch, pure)
    check(trainer, out, work.dtype)
    if work.steps == 0:
        return
    force(trainer, Forced(work, trainer._tokenizer.eos_token_id))
    watch = Stopwatch(work.device)

    class Watch(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            watch.stop()
            print("  TRL, step", watch._steps[-1], flush=True)
            watch.start()

    trainer.add_callback(Watch())
    watch.start()
    trainer.train()
    (out / "trl.json").write_text(json.dumps(asdict(watch.measured())), encoding="utf-8")


if __name__ == "__main__":
    main()
