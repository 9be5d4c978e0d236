"""Closed book, gold passage and perfect retrieval, over a real index."""

import pytest

from seekling.env.budget import Budget
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.tools import all_tools
from seekling.errors import DataError
from seekling.evaluate.bounds import GoldLibrary, OracleEnv, PlainProtocol, gold_passages, has_gold_page
from seekling.retrieval.index import build_index
from seekling.retrieval.library import Library, open_library
from seekling.types import Question, StopReason
from tests.experts.village import BRIDGE, SINGLE, UNANSWERABLE, write_village
from tests.settings import recipe_of

RECIPE = recipe_of({"retrieval": {"top_k": 2, "passage_words": 12}, "env": {"observation_tokens": 100}})
LOST = Question("lost", "Who?", ("x",), ("no_such_page",))


def count_words(text):
    return len(text.split())


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("village")
    build_index(write_village(folder), folder / "index", RECIPE.retrieval.index)
    return open_library(folder / "index", RECIPE.retrieval)


def plain(library, name):
    return PlainProtocol(name, library, RECIPE, Budget(100, count_words))


def test_the_passage_that_states_the_answer_comes_first(library):
    found = gold_passages(library, SINGLE, RECIPE)
    assert [passage.document_id for passage in found] == ["alder_mill", "alder_mill"]
    assert "1612" in found[0].text


def test_of_two_pages_each_gives_the_passage_of_its_own_hop_first(library):
    found = gold_passages(library, BRIDGE, RECIPE)
    assert [passage.document_id for passage in found] == ["alder_mill", "tobias_wren"]
    assert "Tobias Wren" in found[0].text
    assert "Harrow Dell" in found[1].text


def test_questions_without_a_page_in_the_corpus_have_no_gold(library):
    assert [has_gold_page(library, each) for each in (SINGLE, UNANSWERABLE, LOST)] == [True, False, False]
    assert gold_passages(library, LOST, RECIPE) == []


def test_what_asks_a_search_server_for_gold_pages_may_wait(library):
    distant = Library(library._retriever, library._documents, may_wait=True)
    assert [plain(each, "gold-passage").may_wait for each in (library, distant)] == [False, True]
    assert not plain(distant, "closed-book").may_wait
    assert [oracle(each).may_wait for each in (library, distant)] == [False, True]
    assert GoldLibrary(distant, ()).may_wait


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1612", "1612"),
        ("\n  1612 \nbecause", "1612"),
        ("Answer: 1612", "1612"),
        ("The answer is: 1612", "1612"),
        ("<answer> 1612 </answer>", "1612"),
        ("so <answer>1655</answer> no, <answer>1612</answer>", "1612"),
        ("<answer> 1612", "1612"),
        ("<think>maybe 1655\n1655</think>\n1612", "1612"),
        ("maybe 1655 </think> 1612", "1612"),
    ],
)
def test_the_plain_protocol_takes_the_answer_in_whatever_form_it_comes(library, text, answer):
    assert plain(library, "closed-book").parse(text).payload == answer


def test_nothing_written_is_no_answer_and_there_are_no_tools(library):
    protocol = plain(library, "closed-book")
    assert protocol.parse("<think>hm</think>").kind == "invalid"
    assert protocol.parse(protocol.act(protocol.answer_action("1612"), think="hm")).payload == "1612"
    with pytest.raises(DataError, match="closed-book has no searches"):
        protocol.search_action("x")
    with pytest.raises(DataError, match="has no tool 'search'"):
        protocol.call_action("search", {})


def oracle(library):
    tools = all_tools(library, RECIPE.retrieval.top_k, ())
    env = SearchEnv(make_protocol(RECIPE.env, tools), tools, RECIPE.env, count_tokens=count_words)
    return OracleEnv(env, library, RECIPE)


def test_with_the_oracle_every_search_finds_the_gold_pages_of_its_own_question(library):
    env = oracle(library)
    for question, pages in ((SINGLE, {"alder_mill"}), (BRIDGE, {"alder_mill", "tobias_wren"})):
        with env.start(question) as session:
            result = session.step("<search> cider and bees </search>", finish="stop")
            assert set(result.turn.calls[0].document_ids) == pages
            assert "Harrow Dell is a hamlet" not in result.turn.observation
            assert session.step("<answer> 1612 </answer>", finish="stop").stop_reason is StopReason.ANSWERED
