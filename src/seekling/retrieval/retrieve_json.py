r"""Search-R1's way to write hits as JSON, both directions.

A passage is {"id", "contents"} with contents of the form '"Title"\nbody'; with scores it stands as "document" beside
its "score". We add "title", "text" and "document_id", which other clients do not read. What other servers are known to
answer is read too: numbers as ids, no ids, no scores, a document that is only its contents.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

from seekling.client import BadReplyError
from seekling.types import Document, Hit, Json, Passage


def hits_to_json(hits: list[Hit], *, with_scores: bool) -> bytes:
    """The JSON array of one query's hits. ASCII only, so that half a surrogate pair in a text is no problem."""
    rows: list[Json] = []
    for hit in hits:
        passage = hit.passage
        document: Json = {
            "id": passage.id,
            "contents": f'"{passage.title}"\n{passage.text}',
            "title": passage.title,
            "text": passage.text,
            "document_id": passage.document_id,
        }
        rows.append({"document": document, "score": hit.score} if with_scores else document)
    return json.dumps(rows).encode("ascii")


def documents_to_json(documents: Sequence[Document | None]) -> bytes:
    """The reply to a request of documents."""
    rows: list[Json] = [
        None
        if each is None
        else {"id": each.id, "title": each.title, "content": each.content, "metadata": dict(each.metadata)}
        for each in documents
    ]
    return json.dumps({"documents": rows}).encode("ascii")


def hits_from_json(reply: Json, *, num_queries: int, top_k: int) -> list[list[Hit]]:
    """Read the reply to a request of several queries.

    Args:
        reply: as the server sent it.
        num_queries: how many lists it must hold.
        top_k: longer lists are cut: some servers answer with more than they were asked for.

    Raises:
        BadReplyError: it is not the reply to such a request; says what it is.
    """
    result = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(result, list):
        raise BadReplyError(f'the reply has no list "result": {reply!s:.200}')
    if len(result) != num_queries:
        raise BadReplyError(f"the reply holds {len(result)} results for {num_queries} queries")
    return [_hits_of(rows, top_k) for rows in result]


def documents_from_json(reply: Json) -> list[Document | None]:
    """Read the reply to a request of documents; None stands for an id that does not exist.

    Raises:
        BadReplyError: it is not such a reply.
    """
    rows = reply.get("documents") if isinstance(reply, dict) else None
    if not isinstance(rows, list):
        raise BadReplyError(f'the reply has no list "documents": {reply!s:.200}')
    return [None if row is None else _document_of(row) for row in rows]


def _document_of(row: Json) -> Document:
    id_, title, content, metadata = (
        [row.get(name) for name in ("id", "title", "content", "metadata")] if isinstance(row, dict) else [None] * 4
    )
    if not isinstance(id_, str) or not isinstance(title, str) or not isinstance(content, str):
        raise BadReplyError(f"not a document: {row!s:.200}")
    columns = metadata if isinstance(metadata, dict) else {}
    return Document(id_, title, content, {name: str(value) for name, value in columns.items()})


def _hits_of(rows: Json, top_k: int) -> list[Hit]:
    if not isinstance(rows, list):
        raise BadReplyError(f"the result of a query is not a list: {rows!s:.200}")
    hits: dict[str, Hit] = {}
    for row in rows:
        place = len(hits)
        # Without scores the order is all that there is.
        document, score = row, -float(place)
        if isinstance(row, dict) and "document" in row:
            document, score = row["document"], _score_of(row.get("score"), place)
        passage = _passage_of(document)
        # A server whose corpus is smaller than k may fill up with one passage again and again.
        hits.setdefault(passage.id, Hit(passage, score, place))
    return list(hits.values())[:top_k]


def _score_of(score: Json, place: int) -> float:
    if score is None:
        return -float(place)
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise BadReplyError(f"not a score: {score!r:.100}")
    return float(score)


def _passage_of(document: Json) -> Passage:
    row = {"contents": document} if isinstance(document, str) else document
    if not isinstance(row, dict):
        raise BadReplyError(f"not a document: {document!r:.200}")
    title, text, contents = row.get("title"), row.get("text"), row.get("contents")
    if not isinstance(title, str) or not isinstance(text, str):
        if not isinstance(contents, str):
            raise BadReplyError(f"a document without contents: {document!s:.200}")
        first, newline, rest = contents.partition("\n")
        title, text = (first.strip().strip('"'), rest) if newline else ("", contents)
    id_ = row.get("id")
    if id_ is None:
        id_ = hashlib.blake2b(f"{title}\n{text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    document_id = row.get("document_id")
    return Passage(str(id_), document_id if isinstance(document_id, str) else str(id_), title, text)
