"""What a served agent was asked, what it answered, and what people said of it: one SQLite file in the run folder.

Every write is on disk before it is acknowledged (WAL, synchronous=FULL), so a killed server or a power cut loses
nothing that a client was told is kept. Feedback is added, never changed; the newest of an answer counts.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seekling.errors import DataError
from seekling.types import Episode

if TYPE_CHECKING:
    from seekling.serve.asking import Answer

SERVED = "served.sqlite"
"""The file in a run folder."""
Thumbs = Literal["up", "down"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY, at REAL NOT NULL, key TEXT NOT NULL, question TEXT NOT NULL,
    answer TEXT, is_found INTEGER NOT NULL, document_ids TEXT NOT NULL, confidence REAL, episode TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS feedback (
    number INTEGER PRIMARY KEY, answer_id TEXT NOT NULL REFERENCES answers(id), at REAL NOT NULL,
    thumbs TEXT, correction TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS feedback_of ON feedback(answer_id);
"""
_NEWEST = """
SELECT answers.id, question, answer, is_found, document_ids, thumbs, correction, episode
FROM answers JOIN feedback ON feedback.number = (
    SELECT max(number) FROM feedback AS mine WHERE answer_id = answers.id AND (
        thumbs IS 'up' OR correction != '' OR NOT EXISTS (
            SELECT 1 FROM feedback AS other WHERE other.answer_id = answers.id AND other.correction != ''
        )
    )
)
ORDER BY feedback.number
"""
"""The newest feedback on each answer; thumbs down, which says what is wrong, takes back no correction."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer with the newest feedback on it; a correction stays when thumbs down follow."""

    id: str
    question: str
    answer: str | None
    is_found: bool
    document_ids: tuple[str, ...]
    """Of the pages that it quotes."""
    thumbs: Thumbs | None
    correction: str
    episode: Episode


class Episodes:
    """The file, open; made when it is missing. Safe to share between threads; close it at the end.

    Raises:
        DataError: the file cannot be opened or written, or is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        with self._explained():
            self._database = sqlite3.connect(path, check_same_thread=False, timeout=30, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)

    def keep(self, answer_id: str, key: str, answer: Answer) -> None:
        """Keep an answer, with its episode and the pages that it quotes, under its id for the key that asked."""
        quoted = list(dict.fromkeys(quote.document_id for quote in answer.quotes))
        row = (
            *(answer_id, time.time(), key, answer.question, answer.text, answer.is_found),
            *(json.dumps(quoted), answer.confidence, json.dumps(answer.episode.to_json())),
        )
        with self._explained(), self._lock:
            self._database.execute(f"INSERT INTO answers VALUES ({', '.join('?' * len(row))})", row)

    def add_feedback(self, answer_id: str, key: str, thumbs: Thumbs | None, correction: str) -> bool:
        """Add what somebody said of an answer; False when this key got no such answer. On disk when it returns."""
        asked = "SELECT id, ?, ?, ? FROM answers WHERE id = ? AND key = ?"
        row = (time.time(), thumbs, correction, answer_id, key)
        with self._explained(), self._lock:
            added = self._database.execute(f"INSERT INTO feedback (answer_id, at, thumbs, correction) {asked}", row)
            return added.rowcount == 1

    def judged(self) -> list[Judged]:
        """The answers that somebody said something of, in the order of the newest feedback."""
        with self._explained(), self._lock:
            rows = self._database.execute(_NEWEST).fetchall()
        return [
            Judged(
                *(id_, question, answer, bool(is_found), tuple(json.loads(documents)), thumbs, correction or ""),
                episode=Episode.from_json(json.loads(episode)),
            )
            for id_, question, answer, is_found, documents, thumbs, correction, episode in rows
        ]

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(
                f"{self._path} cannot be used ({error}); is the disk full, or the file something else?"
            ) from None
