"""Which questions a model answers without searching: they teach an agent nothing.

A greedy reply begins with a reference answer only if its first token does. So one prefill of a question, which gives
that token, decides most of them, and only the others are decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from seekling.env.protocol.stopping import StopRule
from seekling.models import load_policy, resolve_model
from seekling.pipeline.reporter import Advance, Reporter
from seekling.rollout.engine.local import LocalSampler
from seekling.rollout.sampler import SampleRequest
from seekling.serve.local_model import rounds_weights, trained_policy
from seekling.text import holds_words
from seekling.types import UNANSWERABLE, Question

PROMPT = (
    "Question: Who wrote Hamlet?\nAnswer: William Shakespeare\n\n"
    "Question: How many legs does a spider have?\nAnswer: 8\n\n"
    "Question: {question}\nAnswer:"
)
"""Two examples show how short an answer is; a base model can be asked this too."""
_CONTEXT_TOKENS, _REPLY_TOKENS, _IN_FLIGHT = 512, 32, 64
_LONGER = ' The "{}" and'
"""A reply of this length tells whether it begins with an answer."""
_CACHE_BYTES = 2 * 1024**3
_ARTICLES = frozenset(["a", "an", "the", "der", "die", "das", "ein", "eine"])


def find_model(model: str, reporter: Reporter) -> Path:
    """The folder of a model by its spec, or of a run's policy.

    Raises:
        ModelError: the spec is wrong, or the model cannot be had.
        MissingExtraError: a package that the spec needs is not installed.
    """
    if (Path(model) / "recipe.toml").is_file():
        return trained_policy(Path(model))[0]
    return resolve_model(model, log=reporter.line)


def answered_closed_book(questions: Sequence[Question], folder: Path, reporter: Reporter) -> set[tuple[str, str]]:
    """Keys of the questions whose answer a model's greedy reply begins with, whatever its case or article.

    Unanswerable ones are not asked, nor those that name what can be the answer: they are right by chance.

    Args:
        questions: those too long for the model's context are passed over.
        folder: of the model, as `find_model` gives it.
        reporter: shows how far it is.
    """
    asked = [each for each in questions if each.kind != UNANSWERABLE and not _names_answer(each)]
    model, tokenizer = load_policy(folder, dtype="auto", device="auto")
    prompts = [tuple(tokenizer.encode(PROMPT.format(question=each.question))) for each in asked]
    limit = min(_CONTEXT_TOKENS, int(model.config.max_position_embeddings or _CONTEXT_TOKENS)) - _REPLY_TOKENS
    sampler = LocalSampler(
        model, tokenizer, in_flight=_IN_FLIGHT, episode_tokens=limit + _REPLY_TOKENS, cache_bytes=_CACHE_BYTES,
        eight_bits=rounds_weights("auto"),
    )  # fmt: skip

    async def reply(number: int, max_tokens: int) -> str:
        stops = StopRule(("\n",))
        request = SampleRequest(number, prompts[number], max_tokens, stops=stops, temperature=0.0)
        try:
            sample = await sampler.sample(request)
        finally:
            sampler.close_session(number)
        return str(tokenizer.decode(list(sample.token_ids), skip_special_tokens=True))

    async def begins_with_answer(number: int) -> bool:
        answers = asked[number].answers
        if len(prompts[number]) > limit or not _may_begin(await reply(number, 1), answers):
            return False
        longest = max(len(tokenizer.encode(_LONGER.format(answer))) for answer in answers)
        text = _without_article(await reply(number, min(longest, _REPLY_TOKENS)))
        return any(_begins_with(text, _without_article(answer)) for answer in answers)

    room = asyncio.Semaphore(2 * _IN_FLIGHT)  # the sampler looks at each waiting request in every pass

    async def is_known(number: int, advance: Advance) -> bool:
        async with room:
            found = await begins_with_answer(number)
        advance("")
        return found

    async def ask() -> list[bool]:
        with reporter.track("closed book", len(asked)) as advance:
            return await asyncio.gather(*(is_known(number, advance) for number in range(len(asked))))

    try:
        is_known_N = asyncio.run(ask())
    finally:
        sampler.close()
    return {each.key for each, known in zip(asked, is_known_N, strict=True) if known}


def _names_answer(question: Question) -> bool:
    return question.is_side_by_side and any(holds_words(question.question, answer) for answer in question.answers)


def _may_begin(token: str, answers: Sequence[str]) -> bool:
    """Whether a reply with this first token may begin with an answer; a token may be a part of a word, or nothing."""
    text = token.strip(" \ufffd\"'`").casefold()
    return text in _ARTICLES or any(
        _without_article(answer).startswith(text) or answer.casefold().startswith(text) for answer in answers
    )


def _begins_with(text: str, answer: str) -> bool:
    return bool(answer) and text.startswith(answer) and not text[len(answer) :][:1].isalnum()


def _without_article(text: str) -> str:
    """The text as it is compared: small, without quotes around it and an article before it."""
    words = text.casefold().replace('"', "").replace("`", "").split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in _ARTICLES else words)
