"""A local model behind messages: the replies of a plain forward pass, whole or in pieces."""

from dataclasses import replace

import pytest

from seekling.errors import InfrastructureError
from seekling.models import load_policy
from seekling.rollout.local_chat import ChatRequest, LocalChat
from seekling.rollout.render import Renderer
from seekling.types import Message
from tests.rollout.policies import open_sampler, plain_logprobs

ASKED = (Message("system", "Answer."), Message("user", "Where is Fowey?"))


@pytest.fixture(scope="module")
def chat(tiny_model_dir):
    renderer = Renderer(load_policy(tiny_model_dir, dtype="float32")[1])
    with LocalChat(open_sampler(tiny_model_dir), renderer, name="tiny", context_tokens=256) as opened:
        yield opened


def streamed(chat, request):
    pieces = []
    reply = chat.submit(request, pieces.append).result()
    return pieces, reply


def test_a_greedy_reply_is_that_of_plain_forward_passes(chat, tiny_model_dir):
    model, tokenizer = load_policy(tiny_model_dir, dtype="float32")
    ids = list(Renderer(tokenizer).prompt(ASKED))
    num_prompt, written = len(ids), []
    while len(written) < 12:
        written.append(int(plain_logprobs(model, ids)[-1].argmax()))
        ids.append(written[-1])
        if written[-1] == tokenizer.eos_token_id:
            break
    reply = chat.ask(ASKED, max_tokens=12)
    assert reply.text == tokenizer.decode(written, skip_special_tokens=True)
    assert (reply.prompt_tokens, reply.completion_tokens) == (num_prompt, len(written))
    assert reply.is_counted
    assert chat.count_prompt_tokens(ASKED).result() == num_prompt


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_the_pieces_of_a_growing_reply_add_up_to_the_whole_one(chat, temperature):
    for seed in range(5):
        request = ChatRequest(ASKED, 60, temperature=temperature, seed=seed)
        pieces, grown = streamed(chat, request)
        assert grown == chat.submit(request).result()
        assert "".join(pieces) == grown.text
    assert len(pieces) > 2


def test_a_stop_string_ends_the_reply_before_it_wherever_it_falls(chat):
    whole = chat.ask(ASKED, max_tokens=60, temperature=1.3, seed=3)
    for start in range(0, len(whole.text) - 4, 7):
        stop = whole.text[start : start + 4]
        request = ChatRequest(ASKED, 60, temperature=1.3, seed=3, stop=(stop,))
        pieces, grown = streamed(chat, request)
        assert grown.text == "".join(pieces) == whole.text[: whole.text.find(stop)]
        assert chat.submit(replace(request, keeps_stop=True)).result().text == grown.text + stop
        assert not grown.is_cut
        assert chat.submit(request).result().text == grown.text


def test_the_limits_cut_a_reply_and_messages_that_do_not_fit_are_refused(chat):
    assert chat.ask(ASKED, max_tokens=1, temperature=1.3, seed=1).completion_tokens == 1
    long = (Message("user", "harbour " * 20),)
    reply = chat.ask(long, max_tokens=1000, temperature=1.3, seed=1)
    assert reply.prompt_tokens + reply.completion_tokens <= 256
    with pytest.raises(InfrastructureError, match="prompt and reply together have 256"):
        chat.ask((Message("user", "harbour " * 300),), max_tokens=5)


def test_many_ask_at_once_and_get_what_each_alone_would(chat):
    requests = [ChatRequest(ASKED, 20, temperature=1.0, seed=seed) for seed in range(12)]
    alone = [chat.submit(request).result() for request in requests]
    futures = [chat.submit(request) for request in requests]
    assert [future.result() for future in futures] == alone


def test_a_reply_that_is_given_up_leaves_its_place_to_others(chat):
    for _ in range(20):
        chat.submit(ChatRequest(ASKED, 200, temperature=1.3, seed=1)).cancel()
    assert chat.ask(ASKED, max_tokens=3).completion_tokens <= 3
