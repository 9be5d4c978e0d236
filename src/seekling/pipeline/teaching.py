"""Questions by a teacher: a chat model behind an OpenAI-compatible endpoint reads passages and writes questions.

What it writes is checked as the rules' own questions are; a reply that cannot be read is passed over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seekling.config import EndpointConfig
from seekling.corpus.making.questions import SOURCE
from seekling.corpus.passages import cut_passages
from seekling.errors import InfrastructureError
from seekling.pipeline.making import Survey
from seekling.pipeline.reporter import Reporter
from seekling.rollout.chat import ChatClient
from seekling.types import Hop, Message, Passage, Question

_PROMPT = Path(__file__).with_name("teacher.txt")
_PASSAGE_WORDS, _MIN_WORDS, _PER_PASSAGE = 250, 30, 3
_MAX_TOKENS, _IN_FLIGHT = 800, 8
_TEACHER = "teacher"
"""Label of its questions."""


def ask_teacher(endpoint: EndpointConfig, found: Survey, num_questions: int, reporter: Reporter) -> list[Question]:
    """Have a teacher write about so many questions about passages drawn from all pages.

    Raises:
        ConfigError: the endpoint refuses the key, the address or the model.
    """
    client = ChatClient(endpoint)
    passages = _drawn(found, -(-num_questions // _PER_PASSAGE))

    def ask(passage: Passage) -> str:
        case = {"page": passage.title, "passage": passage.text, "language": found.language}
        system = _PROMPT.read_text(encoding="utf-8").replace("{num}", str(_PER_PASSAGE))
        messages = [Message("system", system), Message("user", json.dumps(case, ensure_ascii=False))]
        try:
            return client.ask(messages, max_tokens=_MAX_TOKENS).text
        except InfrastructureError as error:
            reporter.line(f"teacher: no reply about {passage.id}: {error}")
            return ""

    questions: list[Question] = []
    pool = ThreadPoolExecutor(_IN_FLIGHT)
    try:
        with reporter.track("teacher", len(passages)) as advance:
            for passage, reply in zip(passages, pool.map(ask, passages), strict=True):
                questions += _questions_of(passage, reply)
                advance("")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return list({question.key: question for question in questions}.values())


def _drawn(found: Survey, number: int) -> list[Passage]:
    """Passages with enough text, as good as at random, the same each time."""
    passages = [
        passage
        for document in found.documents
        for passage in cut_passages(document, words=_PASSAGE_WORDS)
        if len(passage.text.split()) >= _MIN_WORDS
    ]
    return sorted(passages, key=lambda passage: hashlib.sha256(passage.id.encode("utf-8", "replace")).digest())[:number]


def _questions_of(passage: Passage, reply: str) -> Iterator[Question]:
    for line in reply.splitlines():
        try:
            row = json.loads(line.strip().rstrip(","))
        except ValueError:
            continue
        fields = ("question", "answer", "subject", "relation")
        texts = [row.get(name) for name in fields] if isinstance(row, dict) else []
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            continue
        text, answer, subject, relation = (str(each).strip() for each in texts)
        digest = hashlib.sha256(f"{passage.id} {text}".encode("utf-8", "replace")).hexdigest()[:10]
        hop = Hop(subject, relation, answer, passage.document_id)
        yield Question(f"te-{digest}", text, (answer,), (passage.document_id,), "single", SOURCE, (hop,), (_TEACHER,))
