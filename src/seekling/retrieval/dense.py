"""Dense retrieval: passages and queries become unit vectors of one encoder; the best are found by exact search.

The only file of this room that imports torch, and only when an encoder is loaded. Vectors lie in a mapped .npy file and
are searched block by block with numpy, so nothing but one block is in memory at a time. No approximate search: at the
sizes of one machine exact search is fast enough, and a missing passage is then never the index's fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from seekling.errors import IndexMismatchError, MissingExtraError, ModelError
from seekling.retrieval.encoders import describe_encoder
from seekling.retrieval.interface import EMPTY_RANKING, Ranking, best_of
from seekling.retrieval.record import EncoderRecord
from seekling.retrieval.store import load_array

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FILES = ("vectors.npy",)

_BATCH = 32
_SORTED_TEXTS = 256
_BLOCK_ROWS = 65_536
_QUERIES_AT_ONCE = 64
# A sum of products depends in its last bits on how many queries were asked together. Rounding hides that, and makes
# equal passages tie, so that a ranking does not hang on it.
_SCORE_DECIMALS = 5


class Encoder:
    """Texts to unit vectors. Safe to share between threads: they take turns."""

    def __init__(self, record: EncoderRecord) -> None:
        self._record = record
        self._model, self._tokenizer = _load(record.spec)
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of queries, the encoder's query prefix put before each."""
        return self._encode([self._record.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """(B, D) float32 unit vectors of passages, the encoder's passage prefix put before each."""
        return self._encode([self._record.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors_BD = np.empty((len(texts), self._record.dimension), dtype=np.float32)
        # Texts of like length share a batch, so that little is computed for padding.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            # A fast tokenizer that two threads use at once fails with "Already borrowed".
            with self._lock:
                vectors_BD[places] = self._encode_batch([texts[place] for place in places])
        return vectors_BD

    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        import torch

        # A model can write half a surrogate pair, which the tokenizer does not take for text.
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._record.max_tokens, return_tensors="pt"
        ).to(self._model.device)
        with torch.inference_mode():
            hidden_BTD: torch.Tensor = self._model(**inputs).last_hidden_state
            if self._record.pooling == "cls":
                pooled_BD = hidden_BTD[:, 0]
            else:
                mask_BT1 = inputs["attention_mask"].unsqueeze(-1).to(hidden_BTD.dtype)
                pooled_BD = (hidden_BTD * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)
            return torch.nn.functional.normalize(pooled_BD, dim=1).float().cpu().numpy()


class DenseRanker:
    """Ranks passages by the inner product of unit vectors, exactly. Every passage is a candidate."""

    def __init__(self, encoder: Encoder, vectors_ND: np.ndarray) -> None:
        self._encoder = encoder
        self._vectors_ND = vectors_ND

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank positions for each query; see `Ranker`."""
        rankings = [EMPTY_RANKING] * len(queries)
        asked = [place for place, query in enumerate(queries) if query.strip()]
        for start in range(0, len(asked), _QUERIES_AT_ONCE):
            places = asked[start : start + _QUERIES_AT_ONCE]
            queries_BD = self._encoder.queries([queries[place] for place in places])
            for place, ranking in zip(places, self._rank_vectors(queries_BD, top_k), strict=True):
                rankings[place] = ranking
        return rankings

    def _rank_vectors(self, queries_BD: np.ndarray, top_k: int) -> list[Ranking]:
        best: list[Ranking] = [EMPTY_RANKING] * len(queries_BD)
        for start in range(0, len(self._vectors_ND), _BLOCK_ROWS):
            block_ND = self._vectors_ND[start : start + _BLOCK_ROWS]
            scores_BN = np.round(queries_BD @ block_ND.T, _SCORE_DECIMALS)
            positions_N = np.arange(start, start + len(block_ND))
            for query, scores_N in enumerate(scores_BN):
                of_block = best_of(positions_N, scores_N, top_k)
                best[query] = best_of(
                    np.concatenate([best[query].positions_K, of_block.positions_K]),
                    np.concatenate([best[query].scores_K, of_block.scores_K]),
                    top_k,
                )
        return best


def build_dense(
    texts: Iterable[str],
    num_texts: int,
    folder: Path,
    record: EncoderRecord,
    *,
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """Encode texts into `vectors.npy` of a folder: (num_texts, D) float32, a text per row, in order."""
    encoder = Encoder(record)
    vectors_ND = np.lib.format.open_memmap(
        folder / FILES[0], mode="w+", dtype=np.float32, shape=(num_texts, record.dimension)
    )
    done = 0
    for chunk in _chunks(texts, _SORTED_TEXTS):
        vectors_ND[done : done + len(chunk)] = encoder.passages(chunk)
        done += len(chunk)
        report(done)
    assert done == num_texts, f"{done} texts came instead of {num_texts}"
    vectors_ND.flush()


def open_dense(folder: Path, record: EncoderRecord, spec: str, *, rebuild: str) -> DenseRanker:
    """Open the vectors of an index with the encoder that made them.

    Args:
        folder: of the index.
        record: the encoder as it was when the index was made.
        spec: where that encoder is found now.
        rebuild: the command to name when it is another one.

    Raises:
        IndexMismatchError: the encoder's files are not the ones that made the vectors, or it would be used otherwise.
    """
    now = describe_encoder(spec).model_copy(update={"spec": record.spec})
    changed = [
        f"{name}: the index has {value!r}, the encoder now {new!r}"
        for (name, value), (_, new) in zip(record, now, strict=True)
        if value != new
    ]
    if changed:
        raise IndexMismatchError(
            f"index {folder} was made with another encoder than {spec} is now:\n  " + "\n  ".join(changed) + "\n"
            f"Name the encoder that made it, or rebuild it with: {rebuild}"
        )
    return DenseRanker(Encoder(record.model_copy(update={"spec": spec})), load_array(folder / FILES[0]))


def _load(spec: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        import torch
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingExtraError(f"dense retrieval needs {error.name}: pip install 'seekling[train]'") from None
    from seekling.models import resolve_model

    path = resolve_model(spec)
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        # transformers' annotations do not say that output_loading_info makes the result a pair.
        model, loaded = cast(
            "tuple[PreTrainedModel, dict[str, set[str]]]",
            transformers.AutoModel.from_pretrained(
                str(path), dtype=torch.float32, local_files_only=True, output_loading_info=True
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"cannot load an encoder from {path}: {reason}") from error
    # Many encoders come without the pooler that their class has; we do not use it.
    missing = sorted(key for key in loaded["missing_keys"] if "pooler" not in key)
    if missing:
        raise ModelError(f"{path} lacks {len(missing)} weights of its own architecture, such as {missing[0]}")
    model.eval()
    if torch.cuda.is_available():
        torch.nn.Module.to(model, "cuda")
    return model, tokenizer


def _chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while chunk := list(islice(remaining, size)):
        yield chunk
