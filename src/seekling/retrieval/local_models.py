"""Models that run here: an encoder makes unit vectors of texts, a cross-encoder ranks again what a retriever found.

sentence-transformers does the same and is no dependency: it would bring scikit-learn and scipy to an install that has
torch and transformers already, and knows the prefixes of E5, BGE and GTE only where the model's files name them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seekling.errors import ModelError
from seekling.models import load_pretrained, load_tokenizer, resolve_model, use_transformers
from seekling.retrieval.index_record import EncoderRecord
from seekling.retrieval.interface import Retriever, best_of, check_request
from seekling.types import Hit

if TYPE_CHECKING:
    import torch

DEPTH = 50
"""Passages that a cross-encoder reads per query, at least; what is not among them is lost to it."""
_ENCODED_AT_ONCE = 32
_PAIRS_AT_ONCE = 16
_MAX_PAIR_TOKENS = 512
_SCORE_DECIMALS = 4
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
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of queries, the encoder's query prefix put before each."""
        return self._encode([self._record.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of passages, the encoder's passage prefix put before each."""
        return self._encode([self._record.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors_BD = np.empty((len(texts), self._record.dimension), dtype=np.float32)
        for places in _batches_by_length(texts, _ENCODED_AT_ONCE):
            # A fast tokenizer that two threads use at once fails with "Already borrowed".
            with self._lock:
                vectors_BD[places] = self._encode_batch([texts[place] for place in places])
        return vectors_BD

    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        import torch

        inputs = self._tokenizer(
            [_tokenizable(text, self._record.max_tokens) for text in texts],
            padding=True,
            truncation=True,
            max_length=self._record.max_tokens,
            return_tensors="pt",
        ).to(self._model.device)
        with torch.inference_mode():
            hidden_BTD: torch.Tensor = self._model(**inputs).last_hidden_state
            pooled_BD = _pool(hidden_BTD, inputs["attention_mask"], self._record.pooling)
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


class CrossEncoder:
    """Scores passages for a question by reading both together. Safe to share between threads: they take turns.

    Raises:
        ModelError: the model is not one for sequence classification that gives one score or two (the second for
            "relevant").
        MissingExtraError: torch or transformers is not installed.
    """

    def __init__(self, spec: str) -> None:
        use_transformers()
        path = resolve_model(spec)
        self._tokenizer = load_tokenizer(path, pads_with_own=False)
        self._model = load_pretrained("AutoModelForSequenceClassification", path)
        num_labels = self._model.config.num_labels
        if num_labels not in (1, 2):
            raise ModelError(f"{spec} gives {num_labels} scores per pair, a reranker gives 1, or 2: use another model")
        positions = vars(self._model.config).get("max_position_embeddings")
        limit = positions if isinstance(positions, int) else _MAX_PAIR_TOKENS
        self._max_tokens = min(_MAX_PAIR_TOKENS, self._tokenizer.model_max_length, limit)
        self._lock = threading.Lock()

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) float64: higher is more relevant; rounded, so that it does not hang on the batch."""
        scores_K = np.empty(len(texts))
        for places in _batches_by_length(texts, _PAIRS_AT_ONCE):
            with self._lock:
                scores_K[places] = self._score_batch(query, [texts[place] for place in places])
        return np.round(scores_K, _SCORE_DECIMALS)

    def _score_batch(self, query: str, texts: list[str]) -> np.ndarray:
        import torch

        # A query that fills the input would leave no room for the passage.
        query = self._cut(_tokenizable(query, self._max_tokens))
        inputs = self._tokenizer(
            [query] * len(texts),
            [_tokenizable(text, self._max_tokens) for text in texts],
            padding=True,
            truncation="only_second",
            max_length=self._max_tokens,
            return_tensors="pt",
        ).to(self._model.device)
        with torch.inference_mode():
            logits_BL: torch.Tensor = self._model(**inputs).logits
        has_two = logits_BL.shape[1] == 2
        scores_B: np.ndarray = (logits_BL[:, -1] - (logits_BL[:, 0] if has_two else 0)).numpy(force=True)
        return scores_B

    def _cut(self, query: str) -> str:
        """The query, at most half of the input long."""
        ids = self._tokenizer(query, add_special_tokens=False, truncation=True, max_length=self._max_tokens // 2)
        encoding = ids.encodings[0] if ids.encodings else None
        return query if encoding is None or not encoding.overflowing else query[: encoding.offsets[-1][1]]


class RerankRetriever:
    """A `Retriever` whose hits another one finds and a cross-encoder orders; scores are the cross-encoder's logits."""

    def __init__(self, retriever: Retriever, cross_encoder: CrossEncoder, *, depth: int = DEPTH) -> None:
        self._retriever, self._cross_encoder, self._depth = retriever, cross_encoder, depth

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Rank passages for each query; see `Retriever`. Scores are comparable only within a query."""
        check_request(queries, top_k)
        # At least `depth` is found even for fewer hits, so that a shorter list is the beginning of a longer one.
        found = self._retriever.search(queries, max(top_k, self._depth))
        return [self._ranked(query, hits, top_k) for query, hits in zip(queries, found, strict=True)]

    def _ranked(self, query: str, hits: list[Hit], top_k: int) -> list[Hit]:
        read, unread = hits[: self._depth], hits[self._depth :]
        if not read:
            return []
        scores_K = self._cross_encoder.scores(query, [f"{hit.passage.title}\n{hit.passage.text}" for hit in read])
        ranking = best_of(np.arange(len(read)), scores_K, len(read))
        places, scores = ranking.positions_K.tolist(), ranking.scores_K.tolist()
        # What was not read stays behind, in its order, below the worst that was.
        passages = [read[place].passage for place in places] + [hit.passage for hit in unread]
        scores += [scores[-1]] * len(unread)
        pairs = zip(passages, scores, strict=True)
        return [Hit(passage, score, rank) for rank, (passage, score) in enumerate(pairs)][:top_k]


def reranked(retriever: Retriever, spec: str) -> Retriever:
    """The retriever with the cross-encoder of a setting behind it; the retriever itself where the setting is empty."""
    return RerankRetriever(retriever, CrossEncoder(spec)) if spec else retriever


def _batches_by_length(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Places of texts of like length, so that little is computed for padding."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    return (order[start : start + size] for start in range(0, len(order), size))


def _tokenizable(text: str, max_tokens: int) -> str:
    """As much of a text as so many tokens can hold, as whole characters: a model can write half a surrogate pair."""
    return text[: max_tokens * _CHARS_PER_TOKEN].encode("utf-8", "replace").decode("utf-8")
