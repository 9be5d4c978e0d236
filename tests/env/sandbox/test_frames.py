"""Frames as an attacker may write them, without an attacker."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekling.env.sandbox.frames import (
    MAX_FRAME_BYTES,
    Call,
    Done,
    FrameError,
    FrameReader,
    Output,
    Ready,
    clean_text,
    parse_frame,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
OPS = st.sampled_from(["out", "call", "done", "ready", "run"]) | JSON
NAMES = {name for frame in (Output, Call, Done, Ready) for name in frame.model_fields}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_frame_error(body: bytes):
    with contextlib.suppress(FrameError):
        parse_frame(body)


@given(st.dictionaries(st.sampled_from(sorted(NAMES)) | st.text(max_size=3), OPS), OPS)
def test_any_json_with_the_fields_of_frames_is_a_frame_or_a_frame_error(fields: dict[str, object], op: object):
    with contextlib.suppress(FrameError):
        frame = parse_frame(json.dumps({**fields, "op": op}).encode())
        assert isinstance(frame, Output | Call | Done | Ready)


@pytest.mark.parametrize("depth", [400, 600, 990, 5000, 200_000])
def test_any_depth_is_a_frame_or_a_frame_error(depth: int):
    body = b'{"op":"call","name":"f","kwargs":{},"args":' + b"[" * depth + b"]" * depth + b"}"
    try:
        assert isinstance(parse_frame(body), Call)
    except FrameError:
        assert depth > 300


@given(st.text(alphabet=st.characters()))
def test_clean_text_is_printable_unicode_and_cleaning_twice_changes_nothing(text: str):
    cleaned = clean_text(text)
    cleaned.encode("utf-8")
    assert not set(cleaned) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))}
    assert clean_text(cleaned) == cleaned


def test_a_long_frame_is_refused_before_it_is_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(FrameError, match="at most 1,048,576"):
            FrameReader(ours).read(1)
