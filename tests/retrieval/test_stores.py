"""Chroma, embedded and as a server: filled from an index, and as others fill it."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from seekling.config import IndexConfig, RetrievalConfig
from seekling.errors import ConfigError, IndexMismatchError, MissingExtraError, ServerError
from seekling.retrieval.chroma import fill_store, open_store, parse_store
from seekling.retrieval.encoders import describe_encoder, load_encoder
from seekling.retrieval.index import open_index
from seekling.retrieval.library import open_library
from tests.chroma_server import chroma_server, collect_connections
from tests.retrieval.towns import QUERIES, build_towns, write_tiny_encoder

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def _connections_are_collected():
    yield
    collect_connections()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(write_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny"))


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory, encoder):
    return build_towns(tmp_path_factory.mktemp("index"), "dense", Path(encoder))


@pytest.fixture
def url(tmp_path):
    pytest.importorskip("chromadb")
    return f"chroma:{tmp_path / 'store'}#towns"


@pytest.fixture(scope="module")
def chroma_url(tmp_path_factory):
    with chroma_server(tmp_path_factory.mktemp("server")) as address:
        yield address


def same_hits(found, expected):
    for hits, exact in zip(found, expected, strict=True):
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in exact], abs=2e-3)
        # Near neighbours may swap places; the texts that belong to the ids may not.
        texts = {hit.passage.id: hit.passage for hit in exact}
        assert all(texts[hit.passage.id] == hit.passage for hit in hits if hit.passage.id in texts)
        assert hits[0].passage == exact[0].passage


def test_a_chroma_server_finds_what_the_index_finds(index_dir, encoder, chroma_url):
    url = f"chroma:{chroma_url}#towns"
    fill_store(index_dir, url)
    fill_store(index_dir, url)  # again, as after an interruption
    config = RetrievalConfig(url=url, index=IndexConfig(encoder=encoder))
    library = open_library("unused", config)
    same_hits([library.search(query, 4) for query in QUERIES], open_index(index_dir).search(QUERIES, 4))
    assert library.may_wait


def test_a_collection_of_another_encoder_is_refused(index_dir, url, tmp_path):
    fill_store(index_dir, url)
    other = write_tiny_encoder(tmp_path / "other", seed=1)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")  # an embedded store lets only one client in
    with pytest.raises(IndexMismatchError, match="fingerprint"):
        open_store(url.replace("/store#", "/copy#"), str(other))


def test_a_collection_that_holds_something_else_is_not_written_to(index_dir, encoder, url, tmp_path):
    fill_store(index_dir, url)
    other = build_towns(tmp_path, "hybrid", write_tiny_encoder(tmp_path / "other", seed=1))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with pytest.raises(IndexMismatchError, match="something else"):
        fill_store(other, url.replace("/store#", "/copy#"))


def test_a_collection_that_others_filled_is_searched_and_its_dimension_checked(encoder, chroma_url, tmp_path):
    chromadb = pytest.importorskip("chromadb")
    host, _, port = chroma_url.removeprefix("http://").partition(":")
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.HttpClient(host=host, port=int(port), settings=settings)
    theirs = client.create_collection("theirs", embedding_function=None)
    texts = ["the harbour of Bergen", "bones of Evora", "wine"]
    vectors = load_encoder(describe_encoder(encoder)).passages(texts)
    theirs.add(ids=["a", "b", "c"], embeddings=vectors, documents=texts)
    client.close()
    hits = open_store(f"chroma:{chroma_url}#theirs", encoder).search(["wine"], 2)[0]
    query = load_encoder(describe_encoder(encoder)).queries(["wine"])[0]
    assert (hits[0].passage.text, hits[0].passage.document_id, hits[0].passage.title) == ("wine", "c", "")
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(vectors @ query)[::-1][:2], atol=1e-3)
    wide = str(write_tiny_encoder(tmp_path / "wide", hidden=64))
    with pytest.raises(IndexMismatchError, match="dimension"):
        open_store(f"chroma:{chroma_url}#theirs", wide)


def test_what_a_store_cannot_do_says_so(index_dir, encoder, url, tmp_path):
    with pytest.raises(IndexMismatchError, match="seekling index --push"):
        open_store(url, encoder)
    with pytest.raises(IndexMismatchError, match="without vectors"):
        fill_store(build_towns(tmp_path, "bm25", Path("unused")), url)
    fill_store(index_dir, url)
    with pytest.raises(ServerError, match="serve --search-only"):
        open_store(url, encoder).find("bergen")
    with pytest.raises(ServerError, match="failed"):
        open_store("chroma:http://127.0.0.1:9#towns", encoder)
    for bad in ("chroma:", "chroma:folder", "milvus:folder#x", "chroma:#x", "chroma:http://h?k=v#x"):
        with pytest.raises(ConfigError, match="COLLECTION"):
            parse_store(bad)


def test_without_the_client_it_says_what_to_install(encoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "chromadb", None)
    with pytest.raises(MissingExtraError, match=r"seekling\[chroma\]"):
        open_store("chroma:folder#x", encoder)
