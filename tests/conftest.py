"""What every test module may use: a tiny language model built on the spot, and the real one where it can be had."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from seekling.env.sandbox import Sandbox

# The same examples every time, so that a test that turns red was turned by a change; `make fuzz` draws new ones. No
# deadline: seconds per example depend on what else the machine does.
settings.register_profile("seekling", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=2000)
settings.load_profile("seekling")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forked test workers would warn, and warnings are errors

# ChatML without tools and without a built-in system text, so that rendered prompts are exactly what a test wrote.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]


def training_lines() -> list[str]:
    """A few hundred lines with the words and tags that tests use, the same on every machine."""
    towns = ["Alnwick", "Bergen", "Cahors", "Delft", "Evora", "Fowey"]
    facts = ["was founded in", "has a harbour built in", "held its first fair in", "lost its walls in"]
    lines = [f"{town} {fact} {1000 + 37 * i + 11 * j}." for i, town in enumerate(towns) for j, fact in enumerate(facts)]
    lines += [f"<think>I should look up {town}.</think>\n<search>{town} harbour</search>" for town in towns]
    lines += [f"<information>\nDoc 1(Title: {town}) {town} lies on a river.\n</information>" for town in towns]
    lines += [f"<answer>{town}</answer>" for town in towns]
    lines += [
        f"```python\npages = search_pages('{town}')\nprint(read_section('{town}:history'))\n```" for town in towns
    ]
    lines += [f'{{"name": "search", "arguments": {{"query": "{town}"}}}}' for town in towns]
    lines += ["Answer the question. You may search as often as you want.", "Question: When was the harbour built?"]
    return lines * 6


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama (2 layers, hidden 64, 4 heads, 2 key/value heads) with a byte-level BPE ChatML tokenizer.

    Saved in Hugging Face layout; pad differs from eos; treat it as read-only, it is shared by the whole session.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        unk_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    folder = tmp_path_factory.mktemp("tiny-model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny_model_dir: Path) -> PreTrainedTokenizerBase:
    """The tiny model's; as read-only as its folder."""
    from seekling.models import load_policy

    return load_policy(tiny_model_dir, dtype="float32")[1]


@pytest.fixture(scope="session")
def real_model_dir() -> Path:
    """SmolLM2-135M-Instruct from wherever it can be had, or a skip that says why not."""
    from seekling.errors import SeeklingError
    from seekling.models import resolve_model

    try:
        return resolve_model("default", log=lambda line: None)
    except SeeklingError as error:
        pytest.skip(f"the real model is not reachable: {error}")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """The real one with its defaults, or a skip that says why not."""
    from seekling.config import SandboxConfig
    from seekling.env.sandbox import Sandbox
    from seekling.errors import SandboxError

    try:
        opened = Sandbox(SandboxConfig())
    except SandboxError as error:
        pytest.skip(f"this machine has no sandbox: {error}")
    with opened:
        yield opened


@pytest.fixture
def seekling_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own."""
    monkeypatch.setenv("SEEKLING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def pytest_configure() -> None:
    """Shells start what runs in the background with SIGINT ignored; the tests of Ctrl-C need it as it is elsewhere."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`: a container's quota counts, where xdist would start a worker for each of the machine's cores."""
    from seekling.cores import cores_here

    return math.ceil(cores_here())
