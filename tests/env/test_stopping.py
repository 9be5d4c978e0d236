"""Where a turn ends: thoughts, actions, and text that comes in pieces; `parse` and the stopper leave out the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.env.protocol.stopping import StopRule, cut_after_stop
from tests.contract.test_protocol_contract import MARKS, PROTOCOLS

PIECES = [*MARKS, "```python\n", "\n```\n", "\n", " ", "<", "`", "</", "sear", "think>", "e\u0301"]
texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


@pytest.mark.parametrize(
    ("protocol", "text", "end"),
    [
        ("tags", "<think> I may <search> and </search>. </think> <search> Fowey </search>|", True),
        ("tags", "<search> a <think> b </search>| </think>", True),
        ("tags", "no tag </search>|", True),
        ("tags", "<think> never closed <search> and </search> </answer>", False),
        ("tags", "<think> a </think> b <think> c </think></answer>| </search>", True),
        ("code", "<think>\n```python\nprint(1)\n```\n</think>\n```python\nprint(2)\n```\n|", True),
        ("code", "```python\nprint('<think>')\n```\n|", True),
        ("code", "Look.\n```\n|", True),
        ("tools", "<think> <tool_call>{}</tool_call> </think> <tool_call>{}</tool_call>|", True),
    ],
)
def test_a_turn_ends_at_the_first_stop_string_outside_of_thoughts(protocol, text, end):
    written = text.replace("|", "")
    stopper = PROTOCOLS[protocol].stops.read(written)
    assert stopper.end == (text.index("|") if end else None)
    assert stopper.is_thinking == (not end)


def test_without_openings_there_are_no_thoughts():
    assert StopRule(("</search>",)).read("<think> </search>").end == len("<think> </search>")
    assert StopRule().read("anything").end is None


@given(text=texts)
@pytest.mark.parametrize("name", ["tags", "code", "tools"])
def test_what_would_never_have_stopped_holds_no_closed_action(name, text):
    protocol = PROTOCOLS[name]
    action = protocol.parse(text)
    if protocol.stops.read(text).end is None and action.kind != "invalid":
        # An answer of the tools protocol and a fence at the very end of a text are closed by the end of the turn.
        assert action.kind == "answer" if name == "tools" else name == "code" and "```" in text


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("tags", "<search> and </search>"),
        ("tags", "<answer> and </answer>"),
        ("code", "\n```python\nprint(1)\n```\n"),
        ("code", "<answer> and </answer>"),
        ("tools", '<tool_call>{"name": "search", "arguments": {"query_list": ["and"]}}</tool_call>'),
        ("tools", "Answer: and"),
    ],
)
def test_an_action_in_a_thought_that_is_never_closed_is_none_and_the_model_is_told(name, action):
    read = PROTOCOLS[name].parse(f"<think> I could write {action}")
    assert (read.kind, read.error) == (
        "invalid",
        "the thought is not closed, and what stands inside a thought does not count",
    )
    assert PROTOCOLS[name].parse(f"<think> So. </think> {action}").kind != "invalid"


def test_a_reply_that_begins_inside_a_thought_is_cut_after_its_first_action():
    stops = PROTOCOLS["tags"].stops
    thought, action = "I may <search> and </search>. </think>\n", "<search> Fowey </search>"
    assert cut_after_stop(f"{thought}{action} and more", stops) == (thought + action, True)
    assert cut_after_stop(f"<think> {thought}{action} and more", stops) == (f"<think> {thought}{action}", True)
    assert cut_after_stop("<think> I may <search> and </search>", stops)[1] is False
