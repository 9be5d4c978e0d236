"""Encoders that run here: a model directory becomes unit vectors.

sentence-transformers does the same and is no dependency: it would bring scikit-learn and scipy to an install that has
torch and transformers already, and knows the prefixes of E5, BGE and GTE only where the model's files name them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seekling.models import load_pretrained, load_tokenizer, resolve_model, use_transformers
from seekling.retrieval.index_record import EncoderRecord

if TYPE_CHECKING:
    import torch

_BATCH = 32
_CHARS_PER_TOKEN = 64
"""No text has more, but for runs of white space and of what is no word. Tokenizers read all of a text before they cut
it: what a client sends must not hold up all others."""


class LocalEncoder:
    """Texts to unit vectors. Safe to share between threads: they take turns."""

    def __init__(self, record: EncoderRecord) -> None:
        self._record = record
        use_transformers()
        path = resolve_model(record.spec)
        self._tokenizer = load_tokenizer(path, pads_with_own=False)
        # Many encoders come without the pooler that their class has; we do not use it.
        self._model = load_pretrained("AutoModel", path, may_lack="pooler")
        self._layers = [_load_layer(path / layer) for layer in record.layers]
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of queries, the encoder's query prefix put before each."""
        return self._encode([self._record.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of passages, the encoder's passage prefix put before each."""
        return self._encode([self._record.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors_BD = np.empty((len(texts), self._record.dimension), dtype=np.float32)
        for places in batches_by_length(texts, _BATCH):
            # A fast tokenizer that two threads use at once fails with "Already borrowed".
            with self._lock:
                vectors_BD[places] = self._encode_batch([texts[place] for place in places])
        return vectors_BD

    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        import torch

        inputs = self._tokenizer(
            [tokenizable(text, self._record.max_tokens) for text in texts],
            padding=True,
            truncation=True,
            max_length=self._record.max_tokens,
            return_tensors="pt",
        ).to(self._model.device)
        with torch.inference_mode():
            hidden_BTD: torch.Tensor = self._model(**inputs).last_hidden_state
            pooled_BD = _pool(hidden_BTD, inputs["attention_mask"], self._record.pooling)
            for layer in self._layers:
                pooled_BD = layer.to(pooled_BD.device)(pooled_BD)
            return torch.nn.functional.normalize(pooled_BD, dim=1).float().cpu().numpy()


def _pool(hidden_BTD: torch.Tensor, mask_BT: torch.Tensor, pooling: str) -> torch.Tensor:
    """(B, D) one vector per text; padding may be on either side."""
    import torch

    mask_BT1 = mask_BT.unsqueeze(-1).to(hidden_BTD.dtype)
    if pooling == "mean":
        return (hidden_BTD * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)
    if pooling == "max":
        return hidden_BTD.masked_fill(mask_BT1 == 0, -torch.inf).amax(dim=1)
    first_B = mask_BT.argmax(dim=1)
    last_B = mask_BT.shape[1] - 1 - mask_BT.flip(1).argmax(dim=1)
    rows_B = torch.arange(len(hidden_BTD), device=hidden_BTD.device)
    return hidden_BTD[rows_B, first_B if pooling == "cls" else last_B]


def batches_by_length(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Places of texts of like length, so that little is computed for padding."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    return (order[start : start + size] for start in range(0, len(order), size))


def tokenizable(text: str, max_tokens: int) -> str:
    """As much of a text as so many tokens can hold, as whole characters: a model can write half a surrogate pair."""
    return text[: max_tokens * _CHARS_PER_TOKEN].encode("utf-8", "replace").decode("utf-8")


def _load_layer(folder: Path) -> torch.nn.Module:
    """A linear layer of sentence-transformers: config.json and weights."""
    import torch
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    linear = torch.nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    path = folder / "model.safetensors"
    weights = load_file(path) if path.exists() else torch.load(folder / "pytorch_model.bin", weights_only=True)
    linear.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    return torch.nn.Sequential(linear, torch.nn.Tanh() if activation == "Tanh" else torch.nn.Identity()).eval()
