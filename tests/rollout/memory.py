"""A small model that has learned a text by heart, so that what it samples is known and yet sampled."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from seekling.models import load_policy
from seekling.rollout.render import Renderer
from tests.env.fakes import QUESTION, make_env
from tests.rollout.policies import encode


def memorised(model_dir: Path, folder: Path, text: str) -> Path:
    """A copy of a tiny model that says `text` when it is asked `QUESTION` in the tags protocol."""
    model, tokenizer = load_policy(model_dir, dtype="float32")
    prompt = prompt_of(tokenizer)
    ids = torch.tensor([[*prompt, *encode(tokenizer, text)]])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.05
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompt_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """`QUESTION` as the tags protocol asks it."""
    return Renderer(tokenizer).prompt(make_env().protocol.prompt(QUESTION))
