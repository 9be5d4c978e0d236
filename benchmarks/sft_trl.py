"""The peer's side of `sft_step.py`: TRL's SFTTrainer over given episodes, in a process of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from grpo_workload import Stopwatch
from sft_step import SftWork, write_result
from torch.utils.data import Sampler, SequentialSampler
from transformers import AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

IGNORED = -100


class InOrder(SFTTrainer):
    """TRL's trainer, which remembers the loss of every step and takes the episodes in the order given."""

    step_loss = 0.0

    def _get_train_sampler(self, *args: object) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, *args: object, **options: object) -> torch.Tensor:
        """As TRL's; a step's losses add up over its micro-batches."""
        loss = super().compute_loss(*args, **options)
        self.step_loss += float(loss.detach())
        return loss


def make_trainer(work: SftWork, out: str) -> InOrder:
    """The trainer, set to do the work."""
    layout, batch = work.layout.rsplit("-", 1)
    steps = [sorted(step, key=lambda each: len(each[0])) for step in work.steps]
    data = {
        "input_ids": [ids for step in steps for ids, _ in step],
        "labels": [
            [token if is_trained else IGNORED for token, is_trained in zip(ids, mask, strict=True)]
            for step in steps
            for ids, mask in step
        ],
    }
    config = SFTConfig(
        output_dir=out, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, max_steps=len(steps),
        per_device_train_batch_size=int(batch), gradient_accumulation_steps=len(steps[0]) // int(batch),
        padding_free=layout == "padding-free", max_length=None, learning_rate=work.learning_rate,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, gradient_checkpointing=False,
        bf16=work.dtype == "bfloat16" and not work.pure, seed=0, disable_tqdm=True,
        model_init_kwargs={"dtype": "bfloat16" if work.pure else "float32"},
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return InOrder(model=work.model, args=config, train_dataset=Dataset.from_dict(data), processing_class=tokenizer)


def main() -> None:
    """Run the steps and write what was measured."""
    work = SftWork.read(sys.argv[1])
    torch.set_num_threads(work.threads)
    watch, losses, norms = Stopwatch(), [], []
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(work, folder)

        class Watch(TrainerCallback):
            def on_step_end(self, *args: object, **kwargs: object) -> None:
                watch.stop()
                losses.append(trainer.step_loss)
                trainer.step_loss = 0.0
                watch.start()

            def on_log(self, *args: object, logs: dict[str, float], **kwargs: object) -> None:
                if "grad_norm" in logs:
                    norms.append(float(logs["grad_norm"]))
                watch.start()

        trainer.add_callback(Watch())
        watch.start()
        trainer.train()
    write_result(Path(sys.argv[2]), loss=losses, grad_norm=norms, **asdict(watch.measured()))


if __name__ == "__main__":
    main()
