"""`seekling index` and `seekling search` as a person or a script meets them."""

import json

import pytest

from seekling.retrieval.index_record import read_record
from tests.commands import seekling
from tests.retrieval.towns import TOWNS, write_corpus

ERROR = 1


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture
def index(tmp_path, corpus):
    result = seekling("index", corpus, "--out", tmp_path / "index", "--passage-words", 12)
    assert result.exit_code == 0, result.output
    return tmp_path / "index"


def test_index_says_what_it_made(tmp_path, corpus):
    result = seekling("index", corpus, "--out", tmp_path / "index", "--passage-words", 12)
    assert result.exit_code == 0
    assert "bm25 index of 6 documents" in result.stdout
    assert "seekling search" in result.stdout
    assert read_record(tmp_path / "index").settings.passage_words == 12


@pytest.mark.parametrize(
    ("option", "value"), [("--kind", "colbert"), ("--passage-words", "0"), ("--overlap-words", "-1")]
)
def test_index_names_the_option_that_is_wrong(tmp_path, corpus, option, value):
    result = seekling("index", corpus, "--out", tmp_path / "index", option, value)
    assert result.exit_code == ERROR
    assert f"{option}: " in result.stderr


def test_search_prints_one_json_document(index):
    result = seekling("search", index, "Évora bones", "--top-k", 1, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["query"] == "Évora bones"
    (hit,) = document["hits"]
    assert set(hit) == {"rank", "score", "id", "document_id", "title", "text"}
    assert (hit["rank"], hit["document_id"], hit["title"]) == (0, "evora", "Évora")
    assert hit["score"] > 0


def test_a_page_cannot_steer_the_terminal(tmp_path):
    page = ("a", "Red \x1b[31mtown", "A walled town. \x1b]52;c;cm0=\x07 \x9b2J It has a tower.")
    corpus = write_corpus(tmp_path / "corpus.jsonl", [page])
    assert seekling("index", corpus, "--out", tmp_path / "index").exit_code == 0
    said = seekling("search", tmp_path / "index", "walled town").stdout
    assert "walled town" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)


@pytest.mark.parametrize("query", ["zebra", ""])
def test_search_without_a_match_says_so(index, query):
    assert "no passage matches" in seekling("search", index, query).stdout
    assert json.loads(seekling("search", index, query, "--json").stdout) == {"query": query, "hits": []}


def test_inspect_says_what_an_index_holds_and_refuses_a_damaged_one(index):
    result = seekling("index", "--inspect", index)
    assert result.exit_code == 0
    for fact in ("bm25", "of at most 12 words", "english, stemmed, without stop words", "id, title", "whole"):
        assert fact in result.stdout
    assert json.loads(seekling("index", "--inspect", index, "--json").stdout)["counts"]["documents"] == 6
    (index / "passages.jsonl").write_bytes(b"")
    assert "passages.jsonl has 0 bytes" in seekling("index", "--inspect", index).stderr


def test_update_says_how_many_pages_it_kept(index, corpus):
    rows = [*TOWNS[1:], ("new", "New", "Another page."), ("bergen", "Bergen", "It rains.")]
    write_corpus(corpus, [row for row in rows if row[2] != TOWNS[1][2]])
    refused = seekling("index", corpus, "--out", index, "--passage-words", 12)
    assert "Bring it up to date with --update" in refused.stderr
    result = seekling("index", corpus, "--out", index, "--passage-words", 12, "--update")
    assert "pages: 4 kept, 1 changed, 1 added, 1 removed" in result.stdout
    assert "nothing to do" in seekling("index", corpus, "--out", index, "--passage-words", 12, "--update").stdout


def test_recall_prints_metrics_with_intervals_side_by_side(index, tmp_path):
    pytest.importorskip("pytrec_eval", reason="needs the extra recall")
    questions = tmp_path / "qa.jsonl"
    rows = [("castle duke river", ["alnwick"]), ("blue tiles", ["bergen"]), ("harbour", ["bergen", "star:fowey"])]
    lines = [
        {"id": str(n), "question": text, "answers": ["x"], "supporting_ids": ids} for n, (text, ids) in enumerate(rows)
    ]
    lines.append({"id": "9", "question": "unknown?", "answers": ["x"]})
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = seekling("search", "--recall", index, questions, "--at", 1, "--at", 3, "--json")
    assert result.exit_code == 0, result.output
    scores = json.loads(result.stdout)["retrievers"][str(index)]
    assert (scores["num_questions"], scores["num_unjudged"], scores["num_missing"]) == (3, 1, 0)
    # The pages found are alnwick; delft; bergen and fowey.
    values = {name: metric["value"] for name, metric in scores["metrics"].items()}
    assert values["recall@1"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert values["recall@3"] == values["mrr@3"] == values["ndcg@3"] == pytest.approx(2 / 3)
    assert "66.7 % [" in seekling("search", "--recall", index, questions, "--at", 1, "--at", 3).stdout
    assert "expected one or more indexes" in seekling("search", "--recall", questions).stderr
