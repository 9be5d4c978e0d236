"""A cross-encoder reads question and passage together and ranks again what another retriever has found.

It costs a forward pass per passage, so only the best few dozen are read; what is not among them is lost to it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from seekling.errors import ModelError
from seekling.models import load_pretrained, load_tokenizer, resolve_model, use_transformers
from seekling.retrieval.interface import Retriever, best_of, check_request
from seekling.retrieval.local_encoder import batches_by_length, tokenizable
from seekling.types import Hit

DEPTH = 50
"""Passages that are read per query, at least."""
_BATCH = 16
_MAX_TOKENS = 512
_SCORE_DECIMALS = 4


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
        ordered = [
            Hit(read[place].passage, float(score), rank)
            for rank, (place, score) in enumerate(zip(ranking.positions_K, ranking.scores_K, strict=True))
        ]
        # What was not read stays behind, in its order, below the worst that was.
        worst = ordered[-1].score
        ordered += [Hit(hit.passage, worst, len(ordered) + place) for place, hit in enumerate(unread)]
        return ordered[:top_k]


def reranked(retriever: Retriever, spec: str) -> Retriever:
    """The retriever with the cross-encoder of a setting behind it; the retriever itself where the setting is empty."""
    return RerankRetriever(retriever, CrossEncoder(spec)) if spec else retriever


class CrossEncoder:
    """Scores passages for a question. Safe to share between threads: they take turns.

    Args:
        spec: a model for sequence classification, as `resolve_model` understands it.

    Raises:
        ModelError: it cannot be loaded, or gives neither one score nor two (the second for "relevant").
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
        self._max_tokens = min(_MAX_TOKENS, self._tokenizer.model_max_length, _positions(self._model.config))
        self._lock = threading.Lock()

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) float64: higher is more relevant; rounded, so that it does not hang on the batch."""
        scores_K = np.empty(len(texts))
        for places in batches_by_length(texts, _BATCH):
            with self._lock:
                scores_K[places] = self._score_batch(query, [texts[place] for place in places])
        return np.round(scores_K, _SCORE_DECIMALS)

    def _score_batch(self, query: str, texts: list[str]) -> np.ndarray:
        import torch

        # A query that fills the input would leave no room for the passage.
        query = self._cut(tokenizable(query, self._max_tokens))
        texts = [tokenizable(text, self._max_tokens) for text in texts]
        inputs = self._tokenizer(
            [query] * len(texts),
            texts,
            padding=True,
            truncation="only_second",
            max_length=self._max_tokens,
            return_tensors="pt",
        ).to(self._model.device)
        with torch.inference_mode():
            logits_BL: torch.Tensor = self._model(**inputs).logits
        scores_B: np.ndarray = (
            logits_BL[:, -1] - logits_BL[:, 0] if logits_BL.shape[1] == 2 else logits_BL[:, 0]
        ).numpy(force=True)
        return scores_B

    def _cut(self, query: str) -> str:
        """The query, at most half of the input long."""
        ids = self._tokenizer(query, add_special_tokens=False, truncation=True, max_length=self._max_tokens // 2)
        encoding = ids.encodings[0] if ids.encodings else None
        return query if encoding is None or not encoding.overflowing else query[: encoding.offsets[-1][1]]


def _positions(config: object) -> int:
    limit = vars(config).get("max_position_embeddings", _MAX_TOKENS)
    return int(limit) if isinstance(limit, int) else _MAX_TOKENS
