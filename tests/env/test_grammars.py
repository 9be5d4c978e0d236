"""What each grammar reads, case by case."""

from __future__ import annotations

import pytest

from seekling.env.protocol import Action, Protocol
from seekling.env.tools import tool_from_function
from seekling.errors import DataError
from tests.env.fakes import QUESTION, make_env


def distance(start: str, end: str) -> int:
    """Distance between two towns."""
    return len(start) + len(end)


def look_up(word: str) -> str:
    """Meaning of a word."""
    return word


def grammar(name: str) -> Protocol:
    return make_env(protocol=name, user_tools=[tool_from_function(distance), tool_from_function(look_up)]).protocol


TAGS, CODE, TOOLS = grammar("tags"), grammar("code"), grammar("tools")


def search(query: str) -> Action:
    return Action("search", query, calls=(("search", {"query_list": [query]}),))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search>river Aln</search>", search("river Aln")),
        ("<think>where?</think><search>\n river\nAln </search>", search("river\nAln")),
        ("<think> a </think> <think> b </think><answer>Aln</answer> trailing", Action("answer", "Aln")),
        ("<search> first </search> <search> second </search>", search("first")),
        ("<search> a </search> <answer> b </answer>", search("a")),
        ("<answer> b </answer> <search> a </search>", Action("answer", "b")),
        ("<look_up> fair </look_up>", Action("call", "fair", calls=(("look_up", {"word": "fair"}),))),
        (
            '<distance> {"start": "A", "end": "B"} </distance>',
            Action("call", '{"start": "A", "end": "B"}', calls=(("distance", {"start": "A", "end": "B"}),)),
        ),
        ("<distance> A to B </distance>", Action("invalid", error="the tag distance takes a JSON object")),
        ("<search>  </search>", Action("invalid", error="the query is empty")),
        ("<answer></answer>", Action("invalid", error="the answer is empty")),
        ("<search> river", Action("invalid", error="it holds no tag that is both opened and closed")),
        ("<search> river </answer>", Action("invalid", error="it holds no tag that is both opened and closed")),
        ("<Search> river </Search>", Action("invalid", error="it holds no tag that is both opened and closed")),
    ],
)
def test_tags_are_read(text, action):
    assert TAGS.parse(text) == action


def test_tags_stop_at_every_closing_tag():
    assert TAGS.stops.strings == ("</search>", "</distance>", "</look_up>", "</answer>")
    assert TAGS.continues_turn


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("```python\nprint(1)\n```\n", Action("code", "print(1)")),
        ("```python\nprint(1)\n```", Action("code", "print(1)")),
        ("I look.\n```py\nx = 1\n\nprint(x)\n```\n", Action("code", "x = 1\n\nprint(x)")),
        ("Look: ```\nprint(1)\n```", Action("code", "print(1)")),
        ("```Python\nprint('<think> not one </think>')\n```", Action("code", "print('<think> not one </think>')")),
        ("```python\nprint('<answer> 4 </answer>')\n```", Action("code", "print('<answer> 4 </answer>')")),
        ("<answer> 4 </answer>", Action("answer", "4")),
        ("```python\nprint(1)\n```\n<answer> 4 </answer>", Action("code", "print(1)")),
        ("<answer> 4 </answer>\n```python\nprint(1)\n```", Action("answer", "4")),
        ("```bash\nls\n```", Action("invalid", error="the block is marked bash, only Python runs")),
        ("print(1)", Action("invalid", error="it holds neither a Python block nor an answer")),
    ],
)
def test_code_is_read(text, action):
    assert CODE.parse(text) == action


@pytest.mark.parametrize("text", ["```python\nprint(1)", "```python\nprint('<answer> 4 </answer>"])
def test_an_open_block_is_neither_a_program_nor_an_answer(text):
    action = CODE.parse(text)
    assert (action.kind, "not closed" in action.error) == ("invalid", True)


def test_a_bare_fence_after_prose_stops_before_the_program_and_the_model_is_told():
    stopped = "I look.\n```\n"
    assert stopped.endswith(CODE.stops.strings[0])
    assert "not closed" in CODE.parse(stopped).error


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Answer: Alnwick", Action("answer", "Alnwick")),
        ("<think> Answer: Fowey? </think> So. Answer:\nAlnwick\n", Action("answer", "Alnwick")),
        ("Answer: A. Answer: B", Action("invalid", error="the answer mark must occur exactly once")),
        ("Answer: ", Action("invalid", error="the answer is empty")),
        ("Alnwick", Action("invalid", error="it holds neither a call nor the answer mark")),
        ('<tool_call>{"name": "search"', Action("invalid", error="a tool call is not closed")),
        (
            '<tool_call>\n{"name": "look_up", "arguments": {"word": "fair"}}\n</tool_call>',
            Action(
                "call", '{"name": "look_up", "arguments": {"word": "fair"}}', calls=(("look_up", {"word": "fair"}),)
            ),
        ),
        (
            '<tool_call>{"name": "look_up", "args": {}}</tool_call>',
            Action("invalid", error='the call has no JSON object under "arguments"'),
        ),
        (
            "<tool_call>[1]</tool_call>",
            Action("invalid", error='the call is not a JSON object with "name" and "arguments"'),
        ),
    ],
)
def test_tool_calls_are_read(text, action):
    assert TOOLS.parse(text) == action


def test_several_queries_are_one_action():
    action = TOOLS.search_action("river Aln", " fair ")
    assert action.payload == "river Aln\nfair"
    text = '<tool_call>{"name": "search", "arguments": {"query_list": ["river Aln", "fair"]}}</tool_call>'
    assert TOOLS.act(action) == text


def test_with_native_tools_the_template_frames_what_comes_back():
    native = make_env(protocol="tools", native_tools=True).protocol
    assert (native.observation_role, native.native_tools) == ("tool", True)
    assert "<tool_call>" not in native.prompt(QUESTION)[0].content
    assert (TOOLS.observation_role, TOOLS.native_tools) == ("user", False)


@pytest.mark.parametrize(
    ("protocol", "query"), [(TAGS, "a </search> b"), (TAGS, " "), (CODE, "a\n```\nb"), (TOOLS, "a </tool_call> b")]
)
def test_a_query_that_the_grammar_cannot_hold_is_refused(protocol, query):
    action = protocol.search_action(query) if protocol is not CODE else Action("code", query)
    with pytest.raises(DataError, match=r"cannot be written|would stop early"):
        protocol.act(action)


def test_a_thought_may_quote_what_stops_a_turn_unless_it_closes_itself_first():
    assert TAGS.act(TAGS.answer_action("Aln"), think="no more </search> now").endswith("<answer> Aln </answer>")
    with pytest.raises(DataError, match="would stop early"):
        TAGS.act(TAGS.answer_action("Aln"), think="so. </think> no more </search> now")
