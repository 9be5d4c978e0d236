"""Judge accuracy: a served model reads answers, its verdicts are cached by content, its failures are no verdicts.

A case that the judge could not decide (no reply after all tries, or no readable verdict after asking again) is counted
by its cause and left out of the rate; it is never scored 0. No answer at all is wrong without asking.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from seekling.errors import InfrastructureError
from seekling.files import read_appended
from seekling.reward.judge import (
    PROMPT_HASH,
    Judgement,
    approach_messages,
    judge_messages,
    parse_approach_verdict,
    parse_verdict,
)
from seekling.rollout.chat import ChatModel
from seekling.types import Episode, Json, Message, Question

UNREADABLE = "unreadable_verdict"
NO_REPLY = "no_reply"

Verdict = tuple[Judgement | None, str]
"""A verdict and how it came about ("asked", "cached" or "unanswered"); None and the cause when the judge failed."""


@dataclass(frozen=True, slots=True)
class JudgeAudit:
    """The judge beside exact match; a lenient judge shows in `only_judge`, a broken one in `only_em`."""

    both: int
    only_judge: int
    only_em: int
    neither: int


@dataclass(frozen=True, slots=True)
class JudgeDetails:
    """What a judge's rate depends on."""

    model: str
    endpoint: str
    prompt_hash: str
    """Of the wording of its instructions."""
    errors: Mapping[str, int]
    """Cases without a verdict, by cause; left out of the rate."""
    num_unanswered: int
    """Wrong without asking: there was no answer."""
    num_cached: int
    """Verdicts that an earlier run had got for the same content."""
    audit: JudgeAudit


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts of one evaluation, in the order of its cases."""

    verdicts: tuple[bool | None, ...]
    """None where the judge failed; it is no wrong answer."""
    details: JudgeDetails


class VerdictCache:
    """Verdicts on disk, one JSON line each, keyed by everything that a verdict depends on; None keeps them here.

    Errors are not kept: they are tried again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._verdicts: dict[str, Judgement] = {}
        for line in read_appended(path) if path is not None else ():
            try:
                row = json.loads(line)
                key, verdict = row["key"], Judgement.from_json(row)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # a line that an interruption cut short: its case is judged again
            if isinstance(key, str) and verdict is not None:
                self._verdicts[key] = verdict

    def get(self, key: str) -> Judgement | None:
        """The verdict kept under a key."""
        with self._lock:
            return self._verdicts.get(key)

    def put(self, key: str, verdict: Judgement) -> None:
        """Keep a verdict."""
        with self._lock:
            self._verdicts[key] = verdict
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, **verdict.to_json()}) + "\n")


class Judge:
    """Decides whether answers are right.

    An unreadable verdict is asked for `num_tries` times; `in_flight` cases are judged at once; reasoning judges need
    more `max_tokens` for a reply. Methods raise ConfigError when the endpoint refuses us altogether.
    """

    def __init__(
        self, client: ChatModel, cache: VerdictCache, *, num_tries: int = 3, in_flight: int = 8, max_tokens: int = 1024
    ) -> None:
        self._client, self._cache = client, cache
        self._num_tries, self._in_flight, self._max_tokens = num_tries, in_flight, max_tokens

    def judge(
        self,
        cases: Sequence[tuple[Question, str | None]],
        *,
        exact: Sequence[float] = (),
        on_verdict: Callable[[], None] = lambda: None,
    ) -> Judged:
        """Judge answers, and call `on_verdict` after each.

        Args:
            cases: each question with the answer given; None or blank is no answer, and wrong without asking.
            exact: exact match of each case, for the audit; empty leaves it at zeros.
            on_verdict: called after each case.
        """
        outcomes: list[Verdict] = []
        pool = ThreadPoolExecutor(max_workers=self._in_flight)
        try:
            for outcome in pool.map(lambda case: self._judge_answer(*case), cases):
                outcomes.append(outcome)
                on_verdict()
        finally:  # an error or Ctrl-C leaves the others unasked
            pool.shutdown(wait=True, cancel_futures=True)
        notes = Counter(note for _, note in outcomes)
        verdicts = tuple(None if verdict is None else verdict.is_correct for verdict, _ in outcomes)
        pairs = Counter(zip(verdicts, map(bool, exact), strict=False))
        details = JudgeDetails(
            model=self._client.endpoint.model,
            endpoint=self._client.endpoint.url,
            prompt_hash=PROMPT_HASH,
            errors={cause: notes[cause] for cause in (NO_REPLY, UNREADABLE) if notes[cause]},
            num_unanswered=notes["unanswered"],
            num_cached=notes["cached"],
            audit=JudgeAudit(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False]),
        )
        return Judged(verdicts, details)

    def judge_episode(self, question: Question, episode: Episode) -> Verdict:
        """Judge an episode's answer and its approach; no answer is never correct. Safe to call from several threads."""
        verdict, note = self._ask(approach_messages(question, episode), parse_approach_verdict)
        if verdict is not None and not (episode.answer or "").strip():
            verdict = Judgement(False, verdict.approach)
        return verdict, note

    def _judge_answer(self, question: Question, answer: str | None) -> Verdict:
        if answer is None or not answer.strip():
            return Judgement(False), "unanswered"
        return self._ask(judge_messages(question, answer), parse_verdict)

    def _ask(self, messages: Sequence[Message], parse: Callable[[str], Judgement | None]) -> Verdict:
        endpoint = self._client.endpoint
        parts: list[Json] = [endpoint.url, endpoint.model, dict(endpoint.fields)]
        parts += [[each.role, each.content] for each in messages]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8")).hexdigest()
        kept = self._cache.get(key)
        if kept is not None:
            return kept, "cached"
        for number in range(self._num_tries):
            # Asked again in the same words a greedy judge would fail in the same way, so seed and temperature move.
            temperature = 0.0 if number == 0 else 0.5
            try:
                reply = self._client.ask(
                    messages, max_tokens=self._max_tokens, temperature=temperature, seed=number or None
                )
            except InfrastructureError:
                return None, NO_REPLY
            verdict = None if reply.is_cut else parse(reply.text)
            if verdict is not None:
                self._cache.put(key, verdict)
                return verdict, "asked"
        return None, UNREADABLE
