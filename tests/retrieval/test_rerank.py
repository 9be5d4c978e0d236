"""Reranking by a cross-encoder: a tiny random one, against transformers used by hand."""

import numpy as np
import pytest
import torch
import transformers

from seekling.config import RetrievalConfig
from seekling.errors import ModelError
from seekling.retrieval.index import open_index
from seekling.retrieval.local_models import CrossEncoder, RerankRetriever
from tests.retrieval.towns import QUERIES, build_towns, config_for, write_tiny_cross_encoder


@pytest.fixture(scope="module")
def cross_encoder_dir(tmp_path_factory):
    return write_tiny_cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.fixture(scope="module")
def towns(tmp_path_factory):
    return build_towns(tmp_path_factory.mktemp("towns"), "bm25", "unused")


def logits(folder, query, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        return model(**tokenizer(query, text, return_tensors="pt", truncation=True, max_length=64)).logits[0].numpy()


def test_scores_are_the_models_logits_whatever_the_batch(cross_encoder_dir):
    texts = ["Bergen\na town", "a much longer text about a harbour, a castle and tiles", "x"] * 7
    scores = CrossEncoder(str(cross_encoder_dir)).scores("harbour town", texts)
    expected = [logits(cross_encoder_dir, "harbour town", text)[0] for text in texts[:3]] * 7
    np.testing.assert_allclose(scores, expected, atol=2e-4)


def test_of_two_logits_the_second_speaks_for_the_passage(tmp_path):
    folder = write_tiny_cross_encoder(tmp_path / "two", num_labels=2)
    no, yes = logits(folder, "castle", "Evora")
    np.testing.assert_allclose(CrossEncoder(str(folder)).scores("castle", ["Evora"]), [yes - no], atol=2e-4)


def test_a_classifier_of_many_classes_is_refused(tmp_path):
    with pytest.raises(ModelError, match="3 scores"):
        CrossEncoder(str(write_tiny_cross_encoder(tmp_path / "three", num_labels=3)))


def test_a_long_query_leaves_room_for_the_passage(cross_encoder_dir):
    encoder = CrossEncoder(str(cross_encoder_dir))
    one, other = encoder.scores("castle " * 500, ["blue tiles", "wine"])
    assert one != other


def test_hits_are_those_of_the_retriever_in_the_cross_encoders_order(cross_encoder_dir, towns):
    found = open_index(towns)
    encoder = CrossEncoder(str(cross_encoder_dir))
    for query in QUERIES:
        expected = {hit.passage.id for hit in found.search([query], 50)[0]}
        hits = RerankRetriever(found, encoder).search([query], 50)[0]
        assert {hit.passage.id for hit in hits} == expected
        scores = encoder.scores(query, [f"{hit.passage.title}\n{hit.passage.text}" for hit in hits])
        assert [hit.score for hit in hits] == scores.tolist() == sorted(scores, reverse=True)


def test_what_is_not_read_stays_behind_in_its_order(cross_encoder_dir, towns):
    found = open_index(towns)
    plain = found.search(["town harbour castle"], 9)[0]
    hits = RerankRetriever(found, CrossEncoder(str(cross_encoder_dir)), depth=2).search(["town harbour castle"], 9)[0]
    assert {hit.passage.id for hit in hits[:2]} == {hit.passage.id for hit in plain[:2]}
    assert [hit.passage.id for hit in hits[2:]] == [hit.passage.id for hit in plain[2:]]
    assert [hit.rank for hit in hits] == list(range(len(hits)))


def test_the_setting_puts_a_cross_encoder_behind_any_index(cross_encoder_dir, towns):
    config = RetrievalConfig(index=config_for("bm25", "unused"), reranker=str(cross_encoder_dir))
    by_setting = open_index(towns, config).search(QUERIES, 3)
    by_hand = RerankRetriever(open_index(towns), CrossEncoder(str(cross_encoder_dir))).search(QUERIES, 3)
    assert by_setting == by_hand
