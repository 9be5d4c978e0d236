"""Thoughts that quote actions, written by a real model: it has learned a few turns by heart and samples them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seekling.env.protocol.stopping import StopRule
from seekling.models import load_policy
from seekling.rollout.loop import Decoding, Roller
from seekling.rollout.render import Renderer
from seekling.rollout.sampler import SampleRequest, TurnEnd
from tests.env.fakes import QUESTION, FakeLibrary, make_env
from tests.rollout.memory import memorised, prompt_of
from tests.rollout.policies import encode, open_sampler, sample_all

THOUGHT = "<think>I may write <search>and</search> or <answer>so</answer>.</think>\n"
TURN = THOUGHT + "<search>Fowey</search>"
AFTER = "<answer>Alnwick</answer>"
RAMBLING = "harbour " * 20
RULE = make_env().protocol.stops


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, which answers the prompt of `QUESTION` with `TURN`, `AFTER` and an endless thought."""
    return memorised(tiny_model_dir, tmp_path_factory.mktemp("memory") / "model", TURN + AFTER + "<think>" + RAMBLING)


def requested(sampler, **settings):
    prompt = tuple(prompt_of(sampler._tokenizer))
    request = SampleRequest(1, prompt, 120, temperature=0.0, stops=RULE)
    return replace(request, **settings)


def text_of(sampler, sample):
    return Renderer(sampler._tokenizer).decode(sample.token_ids)


def test_a_quoted_search_is_not_made(model_dir):
    sampler, library = open_sampler(model_dir, episode_tokens=1024), FakeLibrary()
    renderer = Renderer(sampler._tokenizer)
    env = make_env(library=library, max_turns=1, forced_answer=True, count_tokens=renderer.count_tokens)
    (group,) = Roller(env, sampler, renderer).rollout([QUESTION], Decoding(120, 1024, temperature=0.0))
    first = group.episodes[0].turns[0]
    assert (first.action, first.payload, library.queries) == (TURN, "Fowey", ["Fowey"])
    assert sum(first.action_lengths) == len(first.action)


@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_the_turn_ends_with_the_token_that_closes_its_own_action(model_dir, draft_tokens):
    sampler = open_sampler(model_dir, episode_tokens=1024, draft_tokens=draft_tokens)
    (plain,) = sample_all(sampler, [requested(sampler, stops=StopRule(RULE.strings))])
    assert (text_of(sampler, plain), plain.finish) == (TURN[: TURN.index("</search>") + len("</search>")], "stop")
    (sample,) = sample_all(sampler, [requested(sampler)])
    assert (text_of(sampler, sample), sample.finish) == (TURN, "stop")
    if draft_tokens:
        for number in range(3):  # what was sampled before is guessed now, past the end of the turn too
            sampler._drafter.remember(encode(sampler._tokenizer, TURN + AFTER), 40)
            (again,) = sample_all(sampler, [requested(sampler, session=2 + number)])
            assert again == sample
        assert again.num_accepted > 5


@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_a_thought_that_reaches_its_cap_ends_the_turn_as_cut(model_dir, draft_tokens):
    sampler = open_sampler(model_dir, episode_tokens=1024, draft_tokens=draft_tokens)
    tokenizer = sampler._tokenizer
    (whole,) = sample_all(sampler, [requested(sampler)])
    texts = [tokenizer.decode(whole.token_ids[: n + 1]) for n in range(len(whole.token_ids))]
    is_open = ["<think>" in text and "</think>" not in text for text in texts]
    opened, num_open = is_open.index(True), sum(is_open)
    for cap in (1, 5, num_open):
        (cut,) = sample_all(sampler, [requested(sampler, session=cap, thought_tokens=cap)])
        assert (cut.token_ids, cut.finish) == (whole.token_ids[: opened + cap], "length")
    (enough,) = sample_all(sampler, [requested(sampler, session=99, thought_tokens=num_open + 1)])
    assert (enough.token_ids, enough.finish) == (whole.token_ids, "stop")


@pytest.mark.parametrize(
    "text", [TURN, "Évora \u2014 漢字 " * 9 + "<think>🦭</think></answer>", "\ufffd" * 40 + "</search>"]
)
def test_pieces_of_tokens_add_up_to_the_text(tiny_model_dir, text):
    tokenizer = load_policy(tiny_model_dir, dtype="float32")[1]
    ids = encode(tokenizer, text)
    end = TurnEnd(SampleRequest(0, (), 999, stops=RULE), tokenizer, (), 999)
    pieces = [end._text_of(token_id) for token_id in ids]
    assert "".join(pieces).replace("\ufffd", "") == text.replace("\ufffd", "")
    end = TurnEnd(SampleRequest(0, (), 999, stops=RULE), tokenizer, (), 999)
    assert [end.add(token_id) for token_id in ids] == [None] * (len(ids) - 1) + ["stop"]
