"""Records survive a trip through JSON, and a damaged row is reported by field."""

from __future__ import annotations

import dataclasses
import json

import pytest

from seekling.errors import DataError
from seekling.types import Episode, EpisodeRecord, Hop, Json, Message, Question, Reward, StopReason, ToolCall, Turn

CALL = ToolCall("search", {"query": "x", "filters": [1, {"deep": None}]}, result="text", document_ids=("d1", "d2"))
EPISODE = Episode(
    question_id="q1",
    source="almanac",
    protocol="tags",
    prompt=(Message("system", "s"), Message("user", "u")),
    turns=(Turn("<search>x</search>", "search", payload="x", calls=(CALL,)), Turn("<answer>a</answer>", "answer")),
    answer="a",
    stop_reason=StopReason.ANSWERED,
    temperature=0.5,
)
QUESTION = Question(
    "q1", "Who?", ("a", "b"), supporting_ids=("d1",), kind="bridge", source="almanac", hops=(Hop("s", "r", "a", "d1"),)
)
RECORD = EpisodeRecord(
    "rl", QUESTION, EPISODE, step=3, reward=Reward(1.0, {"em": 1.0}), advantage=-0.5, scores={"f1": 0.25}
)


def _json_row(record: EpisodeRecord) -> dict[str, Json]:
    row = json.loads(json.dumps(record.to_json()))
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("record", [RECORD, dataclasses.replace(RECORD, reward=None, advantage=None, scores={})])
def test_a_record_survives_json(record):
    assert EpisodeRecord.from_json(_json_row(record)) == record


def test_a_record_written_before_hops_existed_is_still_read():
    row = _json_row(RECORD)
    del row["question"]["hops"]
    assert EpisodeRecord.from_json(row).question == dataclasses.replace(QUESTION, hops=())


def test_a_damaged_row_names_every_wrong_field():
    row = _json_row(RECORD)
    row["episode"]["stop_reason"] = "tired"
    row["question"]["hops"][0]["answer"] = 3
    row["colour"] = "red"
    del row["stage"]
    with pytest.raises(DataError) as caught:
        EpisodeRecord.from_json(row)
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "not a valid EpisodeRecord row: 4 problem(s)"
    assert lines.pop(1).startswith("stage: Field required")
    assert lines[1] == "question.hops.0.answer: Input should be a valid string (got 3)"
    assert lines[2].startswith("episode.stop_reason: Input should be 'answered'")
    assert lines[2].endswith("(got 'tired')")
    assert lines[3] == "colour: Unexpected keyword argument (got 'red')"
    assert lines[4] == "the row was written by another version of seekling, or is damaged"
