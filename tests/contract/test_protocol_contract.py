"""What every protocol promises, whatever its grammar."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.config import EnvConfig
from seekling.env.protocol import Protocol, make_protocol
from seekling.env.protocol.grammar import Budget
from seekling.env.tools import Outcome, SearchResult, library_tools, tool_from_function
from seekling.errors import DataError
from seekling.types import Hit, Passage
from tests.env.fakes import QUESTION, FakeLibrary, count_words


def river_length(river: str) -> str:
    """Length of a river in kilometres."""
    return f"{len(river)} km"


def distance(start: str, end: str, unit: str = "km") -> str:
    """Distance between two towns.

    Args:
        start: a town.
        end: another town.
        unit: km or miles.
    """
    return f"{len(start) + len(end)} {unit}"


def protocol_named(name: str, *, native_tools: bool = False, **settings: object) -> Protocol:
    tools = library_tools(FakeLibrary(), 3)
    tools |= {function.__name__: tool_from_function(function) for function in (river_length, distance)}
    config = EnvConfig.model_validate({"protocol": name, **settings})
    return make_protocol(config, tools, native_tools=native_tools)


PROTOCOLS = {
    "tags": protocol_named("tags"),
    "code": protocol_named("code"),
    "tools": protocol_named("tools"),
    "tools-native": protocol_named("tools", native_tools=True),
}
ANSWER_PAIR = re.compile(r"<answer>.*?</answer>|Answer:[^.]*Answer:", re.DOTALL)
SEARCH_PAIR = re.compile(r"<search>.*?</search>", re.DOTALL)

words = st.text(alphabet=st.characters(categories=("L", "N", "P"), exclude_characters="<>`"), min_size=1, max_size=12)
phrases = st.lists(words, min_size=1, max_size=5).map(" ".join)
MARKS = [f"<{slash}{name}>" for slash in ("", "/") for name in ("think", "search", "answer", "tool_call", "distance")]
MARKS += ["```", '{"name":"search","arguments":{}}', "Answer:", "{", "[[[[", '"', "print(1)", "words"]
fragments = st.lists(st.sampled_from([*MARKS, "```python\n", "\n```\n", "\n", " ", "\x00", "\ud800"]), max_size=25).map(
    "".join
)


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> Protocol:
    return PROTOCOLS[request.param]


def hits(num: int, num_words: int = 30) -> tuple[Hit, ...]:
    text = " ".join(f"word{i}" for i in range(num_words))
    return tuple(Hit(Passage(f"p{i}#0", f"p{i}", f"Page {i}", text), 1.0, i) for i in range(num))


def test_the_question_comes_last_and_all_before_it_is_shared(protocol):
    other = dataclasses.replace(QUESTION, question="Who swam the river Aln")
    here, there = protocol.prompt(QUESTION), protocol.prompt(other)
    assert [message.role for message in here] == [message.role for message in there]
    assert here[:-1] == there[:-1]
    assert here[-1].role == "user"
    start, _, rest = here[-1].content.partition(QUESTION.question)
    assert rest in ("", "?\n")
    assert there[-1].content == start + other.question + rest


def test_no_prompt_holds_a_pair_that_could_be_read_as_an_answer_or_a_search(protocol):
    text = "\n".join(message.content for message in protocol.prompt(QUESTION))
    assert not ANSWER_PAIR.search(text)
    assert not SEARCH_PAIR.search(text)
    if protocol.name != "tools":  # its mark has no closing half, and must be named
        assert protocol.parse(text).kind == "invalid"


def test_a_complaint_is_never_read_as_an_action(protocol):
    complaint = protocol.complaint("it holds nothing")
    assert "it holds nothing" in complaint
    assert protocol.parse(complaint).kind == "invalid"
    assert not ANSWER_PAIR.search(complaint)


def test_the_users_tools_are_told_with_their_descriptions(protocol):
    if protocol.native_tools:
        told = str(protocol.tool_schemas())
    else:
        told = "\n".join(message.content for message in protocol.prompt(QUESTION))
    for word in ("river_length", "Length of a river in kilometres.", "distance", "Distance between two towns.", "unit"):
        assert word in told


def test_instructions_of_ones_own_replace_the_protocols():
    for name in ("tags", "code", "tools"):
        protocol = protocol_named(name, system_prompt="Do your best with:\n{tools}\nNow:\n")
        content = protocol.prompt(QUESTION)[0].content
        assert content.startswith("Do your best with:\n")
        assert "river_length" in content
        assert "{tools}" not in content


def test_schemas_name_exactly_the_offered_tools(protocol):
    assert tuple(schema["function"]["name"] for schema in protocol.tool_schemas()) == protocol.tool_names
    assert {"river_length", "distance"} < set(protocol.tool_names)


@given(text=fragments)
@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_parsing_never_fails_and_kinds_go_with_their_parts(name, text):
    action = PROTOCOLS[name].parse(text)
    assert (action.kind in ("search", "call")) == bool(action.calls)
    assert bool(action.payload) == (action.kind != "invalid") or action.kind == "call"
    if action.kind == "invalid":
        assert action.error


@given(query=phrases, answer=phrases, thought=st.one_of(st.just(""), phrases))
@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_what_is_acted_is_what_is_parsed(name, query, answer, thought):
    protocol = PROTOCOLS[name]
    for action in (protocol.search_action(query), protocol.answer_action(answer)):
        if name.startswith("tools") and "Answer:" in answer + thought:
            continue
        text = protocol.act(action, think=thought)
        assert protocol.parse(text) == action
        assert text.startswith("<think>") == bool(thought.strip())


@given(query=fragments, thought=fragments)
@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_an_action_that_cannot_be_written_is_refused_not_changed(name, query, thought):
    protocol = PROTOCOLS[name]
    for action in (protocol.search_action(query), protocol.answer_action(query)):
        try:
            text = protocol.act(action, think=thought)
        except DataError:
            continue
        assert protocol.parse(text) == action


def test_a_sampled_turn_stops_exactly_where_an_acted_one_ends(protocol):
    text = protocol.act(protocol.search_action("harbour of Fowey"), think="I look it up.")
    assert protocol.stops.read(text).end == len(text)


@pytest.mark.parametrize("budget", [20, 40, 77, 200])
def test_an_observation_keeps_to_its_budget_and_its_frame(protocol, budget):
    outcome = Outcome("search", {}, searches=(SearchResult("rivers", hits(3)),))
    observation = protocol.observation([outcome], Budget(budget, count_words))
    assert count_words(observation.text) <= budget
    assert observation.is_truncated == (budget < 200)
    whole = protocol.observation([outcome], Budget(10_000, count_words)).text
    assert observation.text[:10] == whole[:10]
    if protocol.name != "code":
        assert observation.text[-10:] == whole[-10:] or protocol.native_tools
