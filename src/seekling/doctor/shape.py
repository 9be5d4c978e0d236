"""The size of a model, read from its files' headers: nothing is loaded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from seekling.errors import ModelError

SLOT_STEP = 64
"""Tokens that a slot of the sampler's cache holds a multiple of."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides the cost of running and training a decoder-only model."""

    num_parameters: int
    """Every weight once; tied embeddings are one weight."""
    is_tied: bool
    """The embedding table is the output head too."""
    vocabulary: int
    hidden: int
    num_layers: int
    attention: int
    """Width of all query heads together."""
    intermediate: int
    """Width of a layer's gates."""
    cache_values_per_token: int
    """Numbers that the key/value cache holds for one token."""

    def slot_values(self, episode_tokens: int) -> int:
        """Numbers that the sampler's cache reserves for an episode of so many tokens."""
        return -(-episode_tokens // SLOT_STEP) * SLOT_STEP * self.cache_values_per_token

    @property
    def adapter_values_per_rank(self) -> int:
        """Weights of low-rank adapters of rank 1 on every product of every layer."""
        kept = self.cache_values_per_token  # keys and values of all layers
        return self.num_layers * (7 * self.hidden + 2 * self.attention + 3 * self.intermediate) + kept

    @property
    def num_head_parameters(self) -> int:
        """Weights of the product that turns a hidden state into logits."""
        return self.vocabulary * self.hidden

    @property
    def num_body_parameters(self) -> int:
        """Weights that every token is multiplied with: all but the embedding table and the output head."""
        return self.num_parameters - self.num_head_parameters * (1 if self.is_tied else 2)


SMOLLM2_135M = ModelShape(
    num_parameters=134_515_008,
    is_tied=True,
    vocabulary=49_152,
    hidden=576,
    num_layers=30,
    attention=576,
    intermediate=1536,
    cache_values_per_token=11_520,
)
"""The default model's shape, for predictions before it is fetched."""


def read_model_shape(path: Path) -> ModelShape:
    """Read a model's size from config.json and the safetensors headers of a directory in Hugging Face layout.

    Raises:
        ModelError: a file is missing or not what it should be.
    """
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        head_size = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        vocabulary = int(config["vocab_size"])
        # GPT-2 and its like name none; theirs is this.
        intermediate = int(config.get("intermediate_size") or 4 * hidden)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path / 'config.json'} does not describe a decoder-only model: {error!r}") from None
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path} holds no *.safetensors, so its size is unknown")
    return ModelShape(
        num_parameters=sum(_count(file) for file in files),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        vocabulary=vocabulary,
        hidden=hidden,
        num_layers=layers,
        attention=heads * head_size,
        intermediate=intermediate,
        cache_values_per_token=2 * layers * kv_heads * head_size,
    )


def _count(file: Path) -> int:
    """Number of weights in a safetensors file: eight bytes of header length, then a JSON header with every shape."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, 100_000_000)))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} is not a readable safetensors file: {error!r}") from None
