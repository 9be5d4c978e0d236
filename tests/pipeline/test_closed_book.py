"""Questions that a model answers without searching."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from seekling.pipeline import closed_book
from seekling.rollout.render import Renderer
from seekling.types import UNANSWERABLE, Message, Question
from tests.pipeline.runs import QuietReporter

MILL = Question("mill", "Who built the mill?", ("the guild", "Ann Lee"), source="s")


@pytest.fixture(scope="module")
def knowing(tiny_model_dir, tmp_path_factory):
    """A model that has learned by heart who built the mill."""
    model, tokenizer = (each.from_pretrained(tiny_model_dir) for each in (AutoModelForCausalLM, AutoTokenizer))
    prompt = Renderer(tokenizer).prompt((Message("user", closed_book._PROMPT.format(question=MILL.question)),))
    reply = tokenizer.encode("Ann Lee<|im_end|>", add_special_tokens=False)
    tokens = torch.tensor([[*prompt, *reply]])
    labels = torch.tensor([[-100] * len(prompt) + reply])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        model(tokens, labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("knowing")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_only_what_the_model_says_by_itself_is_known(knowing):
    asked = [
        MILL,
        replace(MILL, id="another answer", answers=("Ann",), question="Who built the bridge?"),
        replace(MILL, id="not known", answers=("Bob Hill",)),
        replace(MILL, id="unanswerable", kind=UNANSWERABLE),
        replace(MILL, id="named in the question", kind="comparison"),
    ]
    known = closed_book.answered_closed_book(asked, knowing, QuietReporter())
    assert MILL.key in known
    assert known <= {MILL.key, asked[1].key}, "a model that says one thing only may be right about the bridge too"
