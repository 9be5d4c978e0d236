"""Read questions in the formats people have them, write them, and name a set of them by a hash.

The format of a file is told from its content, never from its name. Rows may be seekling's own, wiki-trivia's,
Search-R1's, HotpotQA's or SQuAD's: of the names that these use for one thing, the first that a row has counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from seekling.corpus import data_files
from seekling.corpus.data_files import Row, id_of, is_whole, shown, text_of
from seekling.errors import DataError
from seekling.files import write_atomically
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, Hop, Json, Question

ACCEPTED_SHAPES = (
    "expected one of: {question, answers} or {question, answer} with optional id, supporting_ids, kind, source, hops, "
    "labels; "
    "wiki-trivia's {question, answer, filename}; "
    "Search-R1's {question, golden_answers or reward_model, data_source, extra_info}; "
    "HotpotQA's {_id, question, answer, supporting_facts, type}; SQuAD's {data: [{title, paragraphs}]}"
)
_QUESTION = ("question", "extra_info.question")
_ID = ("_id", "id", "extra_info.index")  # Search-R1's ids restart in every data set
_ANSWERS = ("golden_answers", "reward_model.ground_truth", "answers", "answer")
_KIND = ("kind", "type", "metadata.type")
_SOURCE = ("data_source", "source")
_FACTS = ("supporting_facts", "metadata.supporting_facts")
_OTHERS = ("supporting_ids", "filename", "title", "is_impossible", "hops", "labels", "withheld")
# What Search-R1's Parquet files need not be asked for (prompts, contexts) is most of their size.
_COLUMNS = (*_QUESTION, *_ID, *_ANSWERS, *_KIND, *_SOURCE, *_FACTS, *_OTHERS)
_PAGE_SUFFIXES = (".md", ".markdown", ".txt", ".html", ".htm", ".json")


def read_questions(path: Path | str, *, source: str = "") -> list[Question]:
    """Read a question file: JSONL (also gzipped), a JSON array, Parquet, or SQuAD's JSON.

    A row without an id is called after its place and its question ("row-12-5f2c9a01"). Repeated answers of a question
    are kept once. A question that SQuAD 2 marks as impossible gets the kind "unanswerable" and the answer "unknown".

    Args:
        path: the file.
        source: name of the data set, for rows that carry none.

    Returns:
        The questions in file order, at least one; (source, id) is distinct.

    Raises:
        DataError: the format is not understood, a row is wrong, or (source, id) comes twice; names file and line.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected one question file; name a file in it")
    questions: list[Question] = []
    places: dict[tuple[str, str], str] = {}
    for row in _rows(path):
        question = _question_of(row, source)
        if question.key in places:
            raise DataError(
                f"{row.where}: the id {question.id!r} of source {question.source!r} was already used at "
                f"{places[question.key]}; expected each id once per source; rename or remove one of them"
            )
        places[question.key] = row.where
        questions.append(question)
    if not questions:
        raise DataError(f"{path} holds no questions; {ACCEPTED_SHAPES}")
    return questions


def write_questions(path: Path, questions: Sequence[Question]) -> None:
    """Write JSONL that `read_questions` reads: what a person reads first, empty fields left out. Replaces the file."""
    rows = []
    for question in questions:
        row = {name: value for name, value in asdict(question).items() if value}
        order = ("question", "answers", "kind", "supporting_ids")
        rows.append({name: row[name] for name in (*order, *row) if name in row})
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def question_set_hash(questions: Iterable[Question]) -> str:
    """Name a set of questions: two evaluations may be compared when this is equal.

    Source, id, question and answers count; the order of the questions, their kind and their supporting pages do not.

    Returns:
        SHA-256, 64 hexadecimal digits.
    """
    rows_of_text = sorted(
        json.dumps([each.source, each.id, each.question, *each.answers], ensure_ascii=True) for each in questions
    )
    return hashlib.sha256("\n".join(rows_of_text).encode("ascii")).hexdigest()


def _rows(path: Path) -> Iterator[Row]:
    """The rows of a file of any format, as long as they may be questions."""
    kind = data_files.sniff(path)
    if kind in {"text", "csv"}:
        raise DataError(f"{path} is neither JSON nor Parquet; {ACCEPTED_SHAPES}, as JSONL, a JSON array or Parquet")
    if kind == "parquet":
        names = set(data_files.columns_of(path, kind))
        _refuse_other_shapes(names, str(path))
        columns = [each for each in _COLUMNS if each.partition(".")[0] in names]
        yield from data_files.read_parquet(path, columns)
    elif kind == "jsonl" and not data_files.is_one_object(path):
        yield from data_files.read_jsonl(path)
    elif kind != "empty":
        whole = data_files.read_json(path)
        if isinstance(whole, dict) and isinstance(whole.get("data"), list):
            yield from _squad_rows(path, whole["data"])
        else:
            yield from data_files.items_as_rows(path, whole if isinstance(whole, list) else [whole])


def _squad_rows(path: Path, articles: Json) -> Iterator[Row]:
    """The questions of a SQuAD file, version 1 or 2, as data set hubs have them: with the texts of all answers."""
    number = 0
    for article_where, article in _objects(articles, "data", str(path)):
        for paragraph_where, paragraph in _objects(article.get("paragraphs"), "paragraphs", article_where):
            for where, fields in _objects(paragraph.get("qas"), "qas", paragraph_where):
                number += 1
                answers = _objects(fields.get("answers") or [], "answers", where)
                texts: list[Json] = [answer.get("text") for _, answer in answers]
                is_impossible = fields.get("is_impossible") is True
                more: dict[str, Json] = {"title": article.get("title"), "is_impossible": is_impossible}
                yield Row(where, number, {**fields, **more, "answers": {"text": texts}})


def _refuse_other_shapes(names: set[str], where: str) -> None:
    if not ({"question", "extra_info"} & names and {"reward_model", *_ANSWERS} & names):
        found = ", ".join(sorted(names)) or "nothing"
        raise DataError(f"{where}: a row with the fields {found}; {ACCEPTED_SHAPES}; rename the fields")


def _question_of(row: Row, source: str) -> Question:
    where = row.where
    _refuse_other_shapes(set(row.fields), where)
    fields = dict(row.fields)
    for name in ("extra_info", "metadata", "reward_model"):
        if isinstance(inner := fields.get(name), dict):
            fields |= {f"{name}.{key}": value for key, value in inner.items()}
    asked, own_id = _first(fields, _QUESTION)[1], _first(fields, _ID)[1]
    if own_id is None:
        digest = hashlib.sha256(str(asked).encode("utf-8", "replace")).hexdigest()
        own_id = f"row-{row.number}-{digest[:8]}"
    name, answers = _first(fields, _ANSWERS)
    pages = _pages(fields, where)
    kind = _first(fields, _KIND)[1]
    if isinstance(answers, dict) and "target" in answers:
        name, answers = f"{name}.target", answers["target"]
    elif isinstance(answers, dict) and "text" in answers:  # SQuAD's
        answers, title = answers["text"], fields.get("title")
        pages = () if title is None else (text_of(title, "title", where),)
        is_impossible = fields.get("is_impossible")
        if is_impossible or (is_impossible is None and not answers):
            answers, pages, kind = UNKNOWN_ANSWER, (), UNANSWERABLE
    return Question(
        id=id_of(own_id, "id", where),
        question=text_of(asked, "question", where),
        answers=_answers(answers, name, where),
        supporting_ids=pages,
        kind="" if kind is None else text_of(kind, "kind", where, may_be_empty=True),
        source=text_of(_first(fields, _SOURCE)[1] or source, "source", where, may_be_empty=True),
        hops=() if fields.get("hops") is None else tuple(_hops(fields["hops"], where)),
        labels=tuple(text_of(each, "labels", where) for each in _list(fields.get("labels"))),
        withheld=tuple(text_of(each, "withheld", where) for each in _list(fields.get("withheld"))),
    )


def _first(fields: Mapping[str, Json], names: Sequence[str]) -> tuple[str, Json]:
    """The first of these fields that a row has, else the first that is there without a value."""
    known = [name for name in names if name in fields] or [names[0]]
    name = next((name for name in known if fields.get(name) is not None), known[0])
    return name, fields.get(name)


def _answers(value: Json, name: str, where: str) -> tuple[str, ...]:
    """One or more answers, in order, each once."""
    if not (values := _list(value)):
        raise DataError(
            f"{where}: {name!r} is {shown(value)}; expected a text or a list of texts; for a question without an "
            f'answer write what a right refusal is, such as ["{UNKNOWN_ANSWER}"]'
        )
    return tuple(dict.fromkeys(str(each) if is_whole(each) else text_of(each, name, where) for each in values))


def _pages(fields: Mapping[str, Json], where: str) -> tuple[str, ...]:
    """Ids of the supporting pages: as such, by wiki-trivia's file, or by the titles of HotpotQA's facts, each once."""
    if fields.get("supporting_ids") is not None:
        return tuple(id_of(each, "supporting_ids", where) for each in _list(fields["supporting_ids"]))
    if fields.get("filename") is not None:
        name = PurePosixPath(text_of(fields["filename"], "filename", where)).name
        # Only a known suffix is cut off: "St. Louis" has none.
        suffix = next((each for each in _PAGE_SUFFIXES if name.lower().endswith(each)), "")
        return (name[: len(name) - len(suffix)],)
    facts = _first(fields, _FACTS)[1]
    # [[title, sentence], ...], or on data set hubs {title: [...], sent_id: [...]}.
    titles = facts.get("title") if isinstance(facts, dict) else facts
    if titles is not None and not isinstance(titles, list):
        raise DataError(
            f"{where}: 'supporting_facts' is {shown(titles)}; expected a list of [title, sentence]; correct the row"
        )
    plain = [fact[0] if isinstance(fact, list) and fact else fact for fact in titles or []]
    return tuple(dict.fromkeys(text_of(title, "supporting_facts", where) for title in plain))


def _hops(value: Json, where: str) -> Iterator[Hop]:
    for place, hop in _objects(value, "hops", where):
        page = hop.get("document_id")
        yield Hop(
            query_subject=text_of(hop.get("query_subject"), "query_subject", place),
            relation=text_of(hop.get("relation"), "relation", place),
            # Empty where no page says it: the hop at which an unanswerable question ends.
            answer=text_of(hop.get("answer"), "answer", place, may_be_empty=True),
            document_id="" if page == "" else id_of(page, "document_id", place),
            claim=text_of(hop.get("claim", ""), "claim", place, may_be_empty=True),
        )


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _objects(value: Json, name: str, where: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """The objects of a list, each after its place."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {name!r} is {shown(value)}; expected a list of objects; correct the file")
    for position, item in enumerate(value):
        place = f"{where} {name}[{position}]"
        if not isinstance(item, dict):
            raise DataError(
                f"{place}: {name!r} is {shown(item)}; expected an object with named fields; correct the row"
            )
        yield place, item
