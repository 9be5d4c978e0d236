"""Embeddings from a server: batches, retries, and servers that answer wrongly."""

import hashlib

import numpy as np
import pytest

from seekling.client import Patience
from seekling.config import RetrievalConfig
from seekling.errors import ConfigError, IndexMismatchError, ServerError
from seekling.retrieval import endpoint_encoder
from seekling.retrieval.endpoint_encoder import EndpointEncoder, describe_endpoint, parse_endpoint
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.library import open_library
from tests.chat_server import chat_server
from tests.retrieval.towns import QUERIES, config_for, write_corpus

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
DIMENSION = 12
QUICK = Patience(timeout_s=5, num_tries=3, first_pause_s=0.01)


def vector(text, seed=0):
    digest = hashlib.blake2b(f"{seed}{text}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).normal(size=DIMENSION).round(6).tolist()


def embeddings(body, seed=0):
    rows = [{"index": n, "embedding": vector(text, seed)} for n, text in enumerate(body["input"])]
    return 200, {"data": rows[::-1], "model": body["model"]}


def encoder_of(server, name="m", patience=QUICK):
    spec = f"{server.url}#{name}"
    return EndpointEncoder(describe_endpoint(spec, patience), patience)


def unit(text):
    values = np.array(vector(text))
    return values / np.linalg.norm(values)


def test_vectors_come_in_the_order_of_the_texts_and_have_unit_length():
    with chat_server(embeddings) as server:
        vectors = encoder_of(server).passages(["one", "two", "three"])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [unit("one"), unit("two"), unit("three")], atol=1e-6)
    assert server.paths[-1] == "/v1/embeddings"
    assert server.requests[-1] == {"model": "m", "input": ["one", "two", "three"]}


def test_rows_without_usable_numbers_are_taken_in_their_order():
    def unnumbered(body):
        return 200, {"data": [{"index": 0, "embedding": vector(text)} for text in body["input"]]}

    with chat_server(unnumbered) as server:
        np.testing.assert_allclose(encoder_of(server).passages(["a", "b"]), [unit("a"), unit("b")], atol=1e-6)


def test_texts_are_sent_in_batches_and_each_only_once():
    with chat_server(embeddings) as server:
        encoder = encoder_of(server)
        server.requests.clear()
        texts = [f"text {n % 150}" for n in range(300)]
        vectors = encoder.passages(texts)
        sent = [len(body["input"]) for body in server.requests]
        assert (sorted(sent), max(sent)) == ([22, 64, 64], endpoint_encoder._BATCH)
        np.testing.assert_array_equal(vectors[:150], vectors[150:])
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "reply",
    [
        {"data": []},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": [0.0] * DIMENSION}]},
        {"data": [{"embedding": ["x"] * DIMENSION}]},
        {"data": [{"embedding": [float("nan")] * DIMENSION}]},
        {"data": "nothing"},
        [],
    ],
)
def test_a_reply_that_is_none_is_a_failure_and_never_a_vector(reply):
    with chat_server(lambda body: (200, reply)) as server, pytest.raises(ServerError, match="3 tries"):
        describe_endpoint(f"{server.url}#m", QUICK)


def test_a_refused_key_or_model_is_a_mistake_of_the_settings():
    with chat_server(lambda body: (401, {"error": "no such key"})) as server, pytest.raises(ConfigError, match="key"):
        describe_endpoint(f"{server.url}#m", QUICK)
    assert len(server.requests) == 1


def test_the_key_is_read_from_the_variable_that_the_address_names(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with chat_server(embeddings) as server:
        record = describe_endpoint(f"{server.url}?key_env=MY_KEY&dimensions=12#m", QUICK)
        assert server.keys == ["Bearer secret"]
        assert server.requests[0]["dimensions"] == 12
    assert "secret" not in record.model_dump_json()
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        describe_endpoint("http://localhost:1/v1?key_env=NO_SUCH_KEY#m", QUICK)


@pytest.mark.parametrize(
    "spec",
    [
        "http://localhost/v1",
        "http://#m",
        "http://localhost/v1?keyenv=X#m",
        "http://localhost/v1?dimensions=x#m",
        "http://localhost/v1?api=cohere#m",
    ],
)
def test_an_address_that_says_too_little_or_too_much_is_refused(spec):
    with pytest.raises(ConfigError, match="https://host/v1#model"):
        parse_endpoint(spec)


def shortened(text, dimensions):
    """A vector as Gemini gives it when fewer dimensions are asked for: cut, and no longer of unit length."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    values = np.random.default_rng(int.from_bytes(digest, "little")).normal(size=3072)
    return (values / np.linalg.norm(values))[:dimensions]


def test_an_index_made_through_a_server_is_searched_through_it(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl")
    with chat_server(embeddings) as server:
        build_index(corpus, tmp_path / "index", config_for("hybrid", f"{server.url}#m"))
        hits = open_index(tmp_path / "index").search(QUERIES, 3)
        assert open_library(tmp_path / "index").may_wait
        assert open_library(tmp_path / "index", RetrievalConfig(index=config_for("hybrid", f"{server.url}#m"))).may_wait
    assert [len(each) for each in hits] == [3] * len(QUERIES)


def test_another_model_behind_the_same_name_is_refused(tmp_path):
    seeds = [0]
    corpus = write_corpus(tmp_path / "c.jsonl")
    with chat_server(lambda body: embeddings(body, seeds[-1])) as server:
        build_index(corpus, tmp_path / "index", config_for("dense", f"{server.url}#m"))
        open_index(tmp_path / "index")
        seeds.append(1)
        with pytest.raises(IndexMismatchError, match="probe"):
            open_index(tmp_path / "index")


# Queries and passages are asked for differently


def native_gemini(body):
    """Gemini's own `batchEmbedContents`: a vector hangs on the task type, and on the text."""
    rows = [
        {"values": shortened(each["taskType"] + each["content"]["parts"][0]["text"], each["outputDimensionality"])}
        for each in body["requests"]
    ]
    return 200, {"embeddings": [{"values": each["values"].tolist()} for each in rows]}


def gemini_spec(server):
    base = server.url.removesuffix("/v1")
    return f"{base}/v1beta?api=gemini&key_env=GEMINI_API_KEY&dimensions=768#gemini-embedding-001"


def test_gemini_is_asked_for_queries_and_documents_by_their_task_types(monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    with chat_server(native_gemini) as server:
        encoder = EndpointEncoder(describe_endpoint(gemini_spec(server), QUICK), QUICK)
        passage_1D, query_1D = encoder.passages(["Bergen"]), encoder.queries(["Bergen"])
    asked = [(request["taskType"], request["content"]) for body in server.requests for request in body["requests"]]
    bergen = {"parts": [{"text": "Bergen"}]}
    assert asked[1:] == [("RETRIEVAL_DOCUMENT", bergen), ("RETRIEVAL_QUERY", bergen)]
    assert asked[0][0] == "RETRIEVAL_DOCUMENT"  # the probe tells what made the vectors of an index
    assert server.requests[-1]["requests"][0]["model"] == "models/gemini-embedding-001"
    assert set(server.paths) == {"/v1beta/models/gemini-embedding-001:batchEmbedContents"}
    for vector_1D, task in ((passage_1D, "RETRIEVAL_DOCUMENT"), (query_1D, "RETRIEVAL_QUERY")):
        values_D = shortened(f"{task}Bergen", 768)
        np.testing.assert_allclose(vector_1D[0], values_D / np.linalg.norm(values_D), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "", {"input": ["query: x"]}, {"input": ["passage: x"]}),
        (
            "Qwen/Qwen3-Embedding-0.6B",
            "query_prefix=Instruct:%20Find%20towns%0AQuery:",
            {"input": ["Instruct: Find towns\nQuery:x"]},
            {"input": ["x"]},
        ),
        ("alias", "query_prefix=query:+&passage_prefix=passage:+", {"input": ["query: x"]}, {"input": ["passage: x"]}),
        ("intfloat/e5-base-v2", "query_prefix=&passage_prefix=", {"input": ["x"]}, {"input": ["x"]}),
    ],
)
def test_an_address_says_how_queries_and_passages_are_asked_for(name, options, query, passage):
    with chat_server(embeddings) as server:
        encoder = EndpointEncoder(describe_endpoint(f"{server.url}?{options}#{name}", QUICK), QUICK)
        encoder.queries(["x"])
        encoder.passages(["x"])
    sent = [{key: body[key] for key in body if key != "model"} for body in server.requests[1:]]
    assert sent == [query, passage]
