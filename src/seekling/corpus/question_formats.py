"""The shapes that question rows come in, and how each becomes a `Question`.

A shape is told from the names of a row's fields. Each parser takes one row and gives one question, or a `DataError`
that names the row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from seekling.corpus.rows import Row, id_of, shown, text_of
from seekling.errors import DataError
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, Hop, Json, Question

Parser = Callable[[Row, str], Question]


ACCEPTED_SHAPES = (
    "expected one of: {question, answers} or {question, answer} with optional id, supporting_ids, kind, source, hops, "
    "labels; "
    "wiki-trivia's {question, answer, filename}; "
    "Search-R1's {question, golden_answers or reward_model, data_source, extra_info}; "
    "HotpotQA's {_id, question, answer, supporting_facts, type}; SQuAD's {data: [{title, paragraphs}]}"
)

# What Search-R1's Parquet files need not be asked for (prompts, contexts) is most of their size.
PARQUET_COLUMNS = (
    *("id", "_id", "question", "answers", "answer", "supporting_ids", "kind", "type", "source", "hops", "filename"),
    *("labels", "withheld"),
    *("golden_answers", "data_source", "reward_model", "extra_info", "supporting_facts", "title", "is_impossible"),
    *("metadata.type", "metadata.supporting_facts"),
)

_PAGE_SUFFIXES = (".md", ".markdown", ".txt", ".html", ".htm", ".json")


def parser_for(names: set[str], where: str) -> Parser:
    """Choose the parser for rows with these fields.

    Raises:
        DataError: no known shape; lists what was found and what is understood.
    """
    if names & {"golden_answers", "reward_model"}:
        return parse_search_r1
    if {"question", "answer", "supporting_facts"} <= names:
        return parse_hotpotqa
    if {"question", "answer", "filename"} <= names:
        return parse_wiki_trivia
    if "question" in names and names & {"answers", "answer"}:
        return parse_native
    if "question" in names and "supporting_facts" in names:
        raise DataError(
            f"{where}: HotpotQA questions without answers (the test file has none); use the train or dev file"
        )
    found = ", ".join(sorted(names)) or "nothing"
    raise DataError(f"{where}: a row with the fields {found}; {ACCEPTED_SHAPES}; rename the fields")


def parse_native(row: Row, source: str) -> Question:
    """`{question, answers|answer}` and more; the form that seekling writes itself.

    Raises:
        DataError: a field is missing or of the wrong type.
    """
    fields, where = row.fields, row.where
    answers, name = (fields["answers"], "answers") if "answers" in fields else (fields.get("answer"), "answer")
    if isinstance(answers, dict) and "text" in answers:
        # SQuAD as data set hubs have it: {"text": [...], "answer_start": [...]}, no text when it is unanswerable.
        texts = answers["text"]
        return _squad_question(row, source, fields.get("title"), texts, is_impossible=texts == [])
    return Question(
        id=_row_id(row, fields.get("id"), fields.get("question")),
        question=text_of(fields.get("question"), "question", where),
        answers=_answers(answers, name, where),
        supporting_ids=_ids(fields.get("supporting_ids"), "supporting_ids", where),
        kind=_optional_text(fields, "kind", where) or _optional_text(fields, "type", where),
        source=_optional_text(fields, "source", where) or source,
        hops=_hops(fields.get("hops"), where),
        labels=_texts(fields.get("labels"), "labels", where),
        withheld=_texts(fields.get("withheld"), "withheld", where),
    )


def parse_wiki_trivia(row: Row, source: str) -> Question:
    """`{question, answer, filename}`: the page that holds the answer is named by its file.

    Raises:
        DataError: a field is missing or of the wrong type.
    """
    fields, where = row.fields, row.where
    name = PurePosixPath(text_of(fields.get("filename"), "filename", where)).name
    # Only a known suffix is cut off: "St. Louis" has none.
    suffix = next((each for each in _PAGE_SUFFIXES if name.lower().endswith(each)), "")
    return Question(
        id=_row_id(row, fields.get("id"), fields.get("question")),
        question=text_of(fields.get("question"), "question", where),
        answers=_answers(fields.get("answer"), "answer", where),
        supporting_ids=(name[: len(name) - len(suffix)],),
        kind=_optional_text(fields, "kind", where),
        source=_optional_text(fields, "source", where) or source,
    )


def parse_search_r1(row: Row, source: str) -> Question:
    """Search-R1's columns. Ids restart in every data set, so `data_source` becomes the source.

    The answers are `golden_answers`, else what `reward_model.ground_truth` holds: a text, a list, or either of them
    under `target`. The id is `id`, else `extra_info.index`; the question is `question`, else `extra_info.question`.

    Raises:
        DataError: a field is missing or of the wrong type.
    """
    fields, where = row.fields, row.where
    extra = _members(fields.get("extra_info"), "extra_info", where)
    metadata = _members(fields.get("metadata"), "metadata", where)
    answers, name = fields.get("golden_answers"), "golden_answers"
    if answers is None:
        answers = _members(fields.get("reward_model"), "reward_model", where).get("ground_truth")
        name = "reward_model.ground_truth"
        if isinstance(answers, dict):
            answers, name = answers.get("target"), f"{name}.target"
    question = extra.get("question") if fields.get("question") is None else fields.get("question")
    own_id = fields.get("id")
    return Question(
        id=_row_id(row, extra.get("index") if own_id is None else own_id, question),
        question=text_of(question, "question", where),
        answers=_answers(answers, name, where),
        supporting_ids=_fact_titles(metadata.get("supporting_facts"), where),
        kind=_optional_text(metadata, "type", where),
        source=_optional_text(fields, "data_source", where) or source,
    )


def parse_hotpotqa(row: Row, source: str) -> Question:
    """HotpotQA's own JSON, and its rows as data set hubs have them (`id` for `_id`, facts as two columns).

    Raises:
        DataError: a field is missing or of the wrong type.
    """
    fields, where = row.fields, row.where
    own_id = fields.get("_id")
    return Question(
        id=_row_id(row, fields.get("id") if own_id is None else own_id, fields.get("question")),
        question=text_of(fields.get("question"), "question", where),
        answers=_answers(fields.get("answer"), "answer", where),
        supporting_ids=_fact_titles(fields.get("supporting_facts"), where),
        kind=_optional_text(fields, "type", where),
        source=_optional_text(fields, "source", where) or source,
    )


def parse_squad(path: Path, articles: Json, source: str) -> Iterator[tuple[str, Question]]:
    """The questions of a SQuAD file, version 1 or 2, each after the place it stands at.

    A question that SQuAD 2 marks as impossible gets the kind "unanswerable" and the answer "unknown".

    Raises:
        DataError: something is missing or of the wrong type.
    """
    number = 0
    for article_where, article in _objects(articles, "data", str(path)):
        title = article.get("title")
        for paragraph_where, paragraph in _objects(article.get("paragraphs"), "paragraphs", article_where):
            for where, fields in _objects(paragraph.get("qas"), "qas", paragraph_where):
                number += 1
                found = fields.get("answers")
                texts: Json = [answer.get("text") for _, answer in _objects(found, "answers", where)] if found else []
                is_impossible = fields.get("is_impossible") is True
                yield (
                    where,
                    _squad_question(Row(where, number, fields), source, title, texts, is_impossible=is_impossible),
                )


def _squad_question(row: Row, source: str, title: Json, texts: Json, *, is_impossible: bool) -> Question:
    fields, where = row.fields, row.where
    return Question(
        id=_row_id(row, fields.get("id"), fields.get("question")),
        question=text_of(fields.get("question"), "question", where),
        answers=(UNKNOWN_ANSWER,) if is_impossible else _answers(texts, "answers", where),
        supporting_ids=() if is_impossible or title is None else (text_of(title, "title", where),),
        kind=UNANSWERABLE if is_impossible else "",
        source=source,
    )


def _row_id(row: Row, value: Json, question: Json) -> str:
    """The row's id, or one made from its place and its question, so that rows of two files differ."""
    if value is not None:
        return id_of(value, "id", row.where)
    return f"row-{row.number}-{hashlib.sha256(str(question).encode('utf-8', 'replace')).hexdigest()[:8]}"


def _answers(value: Json, name: str, where: str) -> tuple[str, ...]:
    """One or more answers, in order, each once."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not values:
        raise DataError(
            f"{where}: {name!r} is {shown(value)}; expected a text or a list of texts; for a question without an "
            f'answer write what a right refusal is, such as ["{UNKNOWN_ANSWER}"]'
        )
    texts = [str(each) if _is_whole_number(each) else text_of(each, name, where) for each in values]
    return tuple(dict.fromkeys(texts))


def _ids(value: Json, name: str, where: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(id_of(each, name, where) for each in values)


def _texts(value: Json, name: str, where: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(text_of(each, name, where) for each in values)


def _fact_titles(value: Json, where: str) -> tuple[str, ...]:
    """Titles of the pages in HotpotQA's [[title, sentence], ...] or {title: [...], sent_id: [...]}, each once."""
    facts = value.get("title") if isinstance(value, dict) else value
    if facts is None:
        return ()
    if not isinstance(facts, list):
        raise DataError(
            f"{where}: 'supporting_facts' is {shown(value)}; expected a list of [title, sentence]; correct the row"
        )
    titles = [fact[0] if isinstance(fact, list) and fact else fact for fact in facts]
    return tuple(dict.fromkeys(text_of(title, "supporting_facts", where) for title in titles))


def _hops(value: Json, where: str) -> tuple[Hop, ...]:
    if value is None:
        return ()
    return tuple(
        Hop(
            query_subject=text_of(hop.get("query_subject"), "query_subject", place),
            relation=text_of(hop.get("relation"), "relation", place),
            # Empty where no page says it: the hop at which an unanswerable question ends.
            answer=text_of(hop.get("answer"), "answer", place, may_be_empty=True),
            document_id="" if hop.get("document_id") == "" else id_of(hop.get("document_id"), "document_id", place),
            claim=text_of(hop.get("claim", ""), "claim", place, may_be_empty=True),
        )
        for place, hop in _objects(value, "hops", where)
    )


def _objects(value: Json, name: str, where: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """The objects of a list, each after its place."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {name!r} is {shown(value)}; expected a list of objects; correct the file")
    for position, item in enumerate(value):
        place = f"{where} {name}[{position}]"
        yield place, _members(item, name, place, may_be_missing=False)


def _members(value: Json, name: str, where: str, *, may_be_missing: bool = True) -> dict[str, Json]:
    if value is None and may_be_missing:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{where}: {name!r} is {shown(value)}; expected an object with named fields; correct the row")
    return value


def _optional_text(fields: Mapping[str, Json], name: str, where: str) -> str:
    value = fields.get(name)
    return "" if value is None else text_of(value, name, where, may_be_empty=True)


def _is_whole_number(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
