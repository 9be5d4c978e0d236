"""Which questions a model answers without looking anything up: they teach it nothing about searching."""

from __future__ import annotations

from collections.abc import Sequence

from seekling.corpus.making.checks import is_held
from seekling.pipeline.reporter import Reporter
from seekling.rollout.local_chat import ChatRequest
from seekling.serve.local_model import open_local_chat
from seekling.types import UNANSWERABLE, Message, Question

_PROMPT = "Answer the question with a name, a date or a few words, and nothing else.\n\nQuestion: {question}\nAnswer:"
_REPLY_TOKENS = 24
_CONTEXT_TOKENS = 512


def answered_closed_book(questions: Sequence[Question], model: str, reporter: Reporter) -> set[tuple[str, str]]:
    """Keys of the questions whose answer stands in the model's greedy reply.

    Unanswerable ones are not asked, nor those whose question names what can be the answer: they are right by chance.

    Args:
        questions: any number.
        model: a spec or run folder.
        reporter: shows how far it is.

    Raises:
        ModelError: the spec cannot be resolved.
        InfrastructureError: a question does not fit into the context.
    """
    asked = [each for each in questions if each.kind != UNANSWERABLE and not each.is_side_by_side]
    with (
        open_local_chat(model, context_tokens=_CONTEXT_TOKENS, in_flight=32, log=reporter.line) as chat,
        reporter.track("closed book", len(asked)) as advance,
    ):
        requests = [
            ChatRequest((Message("user", _PROMPT.format(question=each.question)),), _REPLY_TOKENS, stop=("\n",))
            for each in asked
        ]
        known = set()
        for question, reply in zip(asked, [chat.submit(request) for request in requests], strict=True):
            text = reply.result().text
            if any(is_held(answer, text) for answer in question.answers):
                known.add(question.key)
            advance("")
    return known
