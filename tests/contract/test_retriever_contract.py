"""What every retriever promises, whatever it is made of."""

import importlib.util
import threading

import pytest

from seekling.errors import DataError
from seekling.retrieval.chroma import fill_store, open_store
from seekling.retrieval.index import open_index
from seekling.retrieval.index_record import read_record
from seekling.retrieval.local_models import reranked
from seekling.retrieval.store import PassageStore
from tests.retrieval.towns import QUERIES, TOWNS, build_towns, write_tiny_cross_encoder, write_tiny_encoder
from tests.search_server import open_client, serve

BUILT = {"bm25": "bm25", "dense": "dense", "compressed": "dense", "hybrid": "hybrid"}
BEFORE = {"remote": "hybrid", "reranked": "bm25", "chroma": "dense"}
"""What stands before an index of another kind, or holds what such an index holds."""
KINDS = (*BUILT, *BEFORE)
PACKAGES = {"compressed": "faiss", "chroma": "chromadb"}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("indexes")
    encoder = write_tiny_encoder(folder / "encoder")
    vectors = {"compressed": "compressed"}
    return {
        name: build_towns(folder / name, kind, encoder, vectors=vectors.get(name, "auto"))
        for name, kind in BUILT.items()
        if name not in PACKAGES or importlib.util.find_spec(PACKAGES[name])
    }


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param], reason=f"{PACKAGES[request.param]} is not installed")
    return request.param


@pytest.fixture
def index_dir(kind, indexes):
    return indexes[BEFORE.get(kind, kind)]


@pytest.fixture(scope="module")
def store(indexes, tmp_path_factory):
    """A collection that holds the towns."""
    url = f"chroma:{tmp_path_factory.mktemp('store')}#towns"
    fill_store(indexes["dense"], url)
    return open_store(url, read_record(indexes["dense"]).encoder.spec)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    return str(write_tiny_cross_encoder(tmp_path_factory.mktemp("cross")))


@pytest.fixture(scope="module")
def server(indexes):
    with serve(f"towns={indexes['hybrid']}") as url:
        yield url


@pytest.fixture
def open_again(kind, index_dir, request):
    def open_one():
        if kind == "remote":
            return open_client(request.getfixturevalue("server"))
        if kind == "chroma":
            return request.getfixturevalue("store")
        return reranked(open_index(index_dir), request.getfixturevalue("cross_encoder") if kind == "reranked" else "")

    return open_one


@pytest.fixture
def retriever(open_again):
    return open_again()


def ids_of(hits):
    return [hit.passage.id for hit in hits]


def test_no_query_gives_no_list(retriever):
    assert retriever.search([], 3) == []


def test_hits_are_ranked_from_zero_by_falling_score(retriever):
    for hits in retriever.search(QUERIES, 5):
        assert [hit.rank for hit in hits] == list(range(len(hits)))
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_no_passage_comes_twice(retriever):
    for hits in retriever.search(QUERIES, 50):
        assert len(set(ids_of(hits))) == len(hits)


def test_fewer_passages_than_asked_for_give_fewer_hits_and_no_padding(retriever, index_dir):
    passages = {passage.id for passage in PassageStore(index_dir)}
    for hits in retriever.search(QUERIES, 1000):
        assert 0 < len(hits) <= len(passages)
        assert set(ids_of(hits)) <= passages


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_an_empty_query_finds_nothing(retriever, query):
    assert retriever.search([query], 3) == [[]]


def test_an_empty_query_among_others_does_not_move_them(retriever):
    first, empty, last = retriever.search([QUERIES[0], "", QUERIES[1]], 3)
    assert empty == []
    assert ids_of(first) == ids_of(retriever.search([QUERIES[0]], 3)[0])
    assert ids_of(last) == ids_of(retriever.search([QUERIES[1]], 3)[0])


@pytest.mark.parametrize(
    "query", ["?!...", "\x00", "\U0001d518\U0001d52b \U0001f41f", "ß" * 5000, "tower " * 3000, "\ud800 lone surrogate"]
)
def test_any_text_is_a_query(retriever, query):
    assert all(hit.passage.text for hit in retriever.search([query], 2)[0])


def test_a_shorter_list_is_the_beginning_of_a_longer_one(retriever):
    for query in QUERIES:
        assert ids_of(retriever.search([query], 2)[0]) == ids_of(retriever.search([query], 7)[0])[:2]


def test_queries_asked_together_score_as_if_asked_alone(retriever):
    for query, together in zip(QUERIES, retriever.search(QUERIES, 4), strict=True):
        alone = retriever.search([query], 4)[0]
        assert ids_of(alone) == ids_of(together)
        assert [hit.score for hit in alone] == pytest.approx([hit.score for hit in together], abs=2e-5)


def test_an_index_opened_again_gives_the_same_hits(retriever, open_again):
    assert open_again().search(QUERIES, 5) == retriever.search(QUERIES, 5)


def test_hits_carry_the_passage_and_its_title(retriever):
    titles = {id_: title for id_, title, _ in TOWNS}
    for hit in retriever.search(["harbour town"], 3)[0]:
        assert hit.passage.title == titles[hit.passage.document_id]
        assert hit.passage.id.startswith(hit.passage.document_id + "#")


def test_threads_that_search_at_once_do_not_disturb_each_other(retriever):
    expected = retriever.search(QUERIES, 4)
    seen = []

    def search_many_times():
        for _ in range(20):
            seen.append(retriever.search(QUERIES, 4) == expected)

    threads = [threading.Thread(target=search_many_times) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 80


@pytest.mark.parametrize("top_k", [0, -1])
def test_asking_for_no_hits_is_refused(retriever, top_k):
    with pytest.raises(DataError, match="at least 1"):
        retriever.search(["harbour"], top_k)


def test_one_string_instead_of_a_list_of_queries_is_refused(retriever):
    with pytest.raises(DataError, match="list of queries"):
        retriever.search("harbour", 3)
