"""Closed book and gold passage, over a real index."""

import pytest

from seekling.env.protocol.grammar import Budget
from seekling.evaluate.bounds import PlainProtocol, gold_passages
from seekling.retrieval.index import build_index
from seekling.retrieval.library import Library, open_library
from seekling.types import Question
from tests.experts.village import BRIDGE, SINGLE, write_village
from tests.settings import recipe_of

RECIPE = recipe_of({"retrieval": {"top_k": 2, "passage_words": 12}, "env": {"observation_tokens": 100}})
LOST = Question("lost", "Who?", ("x",), ("no_such_page",))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("village")
    build_index(write_village(folder), folder / "index", RECIPE.retrieval.index)
    return open_library(folder / "index", RECIPE.retrieval)


def plain(library, name):
    return PlainProtocol(name, library, RECIPE, Budget(100, lambda text: len(text.split())))


def test_the_passage_that_states_the_answer_comes_first_of_each_page_that_of_its_own_hop(library):
    found = gold_passages(library, SINGLE, RECIPE)
    assert [passage.document_id for passage in found] == ["alder_mill", "alder_mill"]
    assert "1612" in found[0].text
    found = gold_passages(library, BRIDGE, RECIPE)
    assert [passage.document_id for passage in found] == ["alder_mill", "tobias_wren"]
    assert "Tobias Wren" in found[0].text
    assert "Harrow Dell" in found[1].text
    assert gold_passages(library, LOST, RECIPE) == []


def test_what_asks_a_search_server_for_gold_pages_may_wait(library):
    distant = Library(library._retriever, library._documents, may_wait=True)
    assert [plain(each, "gold-passage").may_wait for each in (library, distant)] == [False, True]
    assert not plain(distant, "closed-book").may_wait


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
        ("<think>hm</think>", ""),
    ],
)
def test_the_plain_protocol_takes_the_answer_in_whatever_form_it_comes(library, text, answer):
    assert plain(library, "closed-book").parse(text).payload == answer
