"""`seekling index` and `seekling search` as a person or a script meets them."""

import json

import pytest
import typer
from typer.testing import CliRunner

from seekling.cli.index import command as index_command
from seekling.cli.main import guarded
from seekling.cli.search import command as search_command
from seekling.retrieval.record import read_record
from tests.retrieval.towns import write_corpus

ERROR = 1


def run(command, *arguments):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(guarded(command))
    return CliRunner().invoke(app, [str(each) for each in arguments], terminal_width=200)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture
def index(tmp_path, corpus):
    result = run(index_command, corpus, "--out", tmp_path / "index", "--passage-words", 12)
    assert result.exit_code == 0, result.output
    return tmp_path / "index"


def test_index_says_what_it_made(tmp_path, corpus):
    result = run(index_command, corpus, "--out", tmp_path / "index", "--passage-words", 12)
    assert result.exit_code == 0
    assert "bm25 index of 6 documents" in result.stdout
    assert "seekling search" in result.stdout
    assert read_record(tmp_path / "index").passage_words == 12


def test_index_says_that_it_kept_an_equal_index(index, corpus):
    result = run(index_command, corpus, "--out", index, "--passage-words", 12)
    assert result.exit_code == 0
    assert "already there" in result.stdout


def test_index_refuses_to_replace_another_index_without_force(index, corpus):
    result = run(index_command, corpus, "--out", index, "--passage-words", 30)
    assert result.exit_code == ERROR
    assert "passage_words: the index has 12, asked for 30" in result.stderr
    assert run(index_command, corpus, "--out", index, "--passage-words", 30, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("option", "value"), [("--kind", "colbert"), ("--passage-words", "0"), ("--overlap-words", "-1")]
)
def test_index_names_the_option_that_is_wrong(tmp_path, corpus, option, value):
    result = run(index_command, corpus, "--out", tmp_path / "index", option, value)
    assert result.exit_code == ERROR
    assert f"{option}: " in result.stderr


def test_index_of_a_missing_corpus_is_one_clear_error(tmp_path):
    result = run(index_command, tmp_path / "nowhere.jsonl", "--out", tmp_path / "index")
    assert result.exit_code == ERROR
    assert "nowhere.jsonl" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_search_prints_one_json_document(index):
    result = run(search_command, index, "Évora bones", "--top-k", 1, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["query"] == "Évora bones"
    (hit,) = document["hits"]
    assert set(hit) == {"rank", "score", "id", "document_id", "title", "text"}
    assert (hit["rank"], hit["document_id"], hit["title"]) == (0, "evora", "Évora")
    assert hit["score"] > 0


def test_search_prints_rank_score_title_and_text(index):
    result = run(search_command, index, "blue tiles")
    assert result.exit_code == 0
    assert result.stdout.startswith("1  ")
    assert "Delft" in result.stdout
    assert "blue tiles" in result.stdout


@pytest.mark.parametrize("query", ["zebra", ""])
def test_search_without_a_match_says_so(index, query):
    assert "no passage matches" in run(search_command, index, query).stdout
    assert json.loads(run(search_command, index, query, "--json").stdout) == {"query": query, "hits": []}


def test_search_without_an_index_names_the_command_that_builds_one(tmp_path):
    result = run(search_command, tmp_path / "nothing", "harbour")
    assert result.exit_code == ERROR
    assert "seekling index CORPUS --out" in result.stderr


def test_search_refuses_a_top_k_below_one(index):
    result = run(search_command, index, "harbour", "--top-k", 0)
    assert result.exit_code == ERROR
    assert "--top-k" in result.stderr
