"""Frames as an attacker may write them, without an attacker."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import pytest
from hypothesis import given, settings
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
    encode_frame,
    parse_frame,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
OPS = st.sampled_from(["out", "call", "done", "ready", "run"]) | JSON
NAMES = {name for frame in (Output, Call, Done, Ready) for name in frame.model_fields}
FIELDS = st.fixed_dictionaries({}, optional={**dict.fromkeys(NAMES, JSON), "op": OPS})


def test_each_kind_of_frame_is_read():
    assert parse_frame(b'{"op": "out", "text": "a\\u0000b"}') == Output(text="a\ufffdb")
    call = parse_frame(b'{"op": "call", "name": "f", "args": [1], "kwargs": {"k": "\\ud800"}}')
    assert call == Call(name="f", args=[1], kwargs={"k": "?"})
    assert parse_frame(b'{"op": "done", "outcome": "ok", "error": ""}') == Done(outcome="ok", error="")
    assert parse_frame(b'{"op": "ready", "cpu_s": 1}') == Ready(cpu_s=1.0)


@given(FIELDS | JSON)
def test_any_json_is_a_frame_or_a_frame_error(value: object):
    with contextlib.suppress(FrameError):
        frame = parse_frame(json.dumps(value).encode())
        json.dumps(frame.model_dump(), ensure_ascii=False).encode("utf-8")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_frame_error(body: bytes):
    with contextlib.suppress(FrameError):
        parse_frame(body)


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


@settings(max_examples=20)
@given(st.lists(st.text(max_size=30), max_size=4), st.integers(1, 50))
def test_frames_are_read_whatever_the_pieces_they_arrive_in(texts: list[str], piece: int):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = b"".join(encode_frame(json.dumps({"op": "out", "text": text})) for text in texts)
        reader = FrameReader(ours)
        got = []
        for at in range(0, len(data), piece):
            theirs.sendall(data[at : at + piece])
            with contextlib.suppress(TimeoutError):
                while True:
                    got.append(reader.read(time.monotonic() + 0.0001))
        theirs.close()
        while (frame := reader.read(time.monotonic() + 1)) is not None:
            got.append(frame)
    assert got == [Output(text=text) for text in texts]


def test_a_long_frame_is_refused_before_it_is_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(FrameError, match="at most 1,048,576"):
            FrameReader(ours).read(time.monotonic() + 1)
