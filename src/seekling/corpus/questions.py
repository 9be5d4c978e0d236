"""Read questions in the formats people have them, write them, split them, and name a set of them by a hash.

The format is told from the content of a file, never from its name; `question_formats` knows the shapes of data_files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from seekling.corpus import data_files
from seekling.corpus.data_files import Row
from seekling.corpus.question_formats import ACCEPTED_SHAPES, PARQUET_COLUMNS, Parser, parse_squad, parser_for
from seekling.errors import ConfigError, DataError
from seekling.files import write_atomically
from seekling.types import Question


def read_questions(path: Path | str, *, source: str = "") -> list[Question]:
    """Read a question file: JSONL (also gzipped), a JSON array, Parquet, or SQuAD's JSON.

    Rows are seekling's own ({question, answers} and more), wiki-trivia's, Search-R1's or HotpotQA's; which, is told
    from the fields of each row (of Parquet: from the columns). A row without an id is called after its place
    and its question ("row-12-5f2c9a01"). Repeated answers of a question are kept once.

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
    for where, question in _parse(path, source):
        if question.key in places:
            raise DataError(
                f"{where}: the id {question.id!r} of source {question.source!r} was already used at "
                f"{places[question.key]}; expected each id once per source; rename or remove one of them"
            )
        places[question.key] = where
        questions.append(question)
    if not questions:
        raise DataError(f"{path} holds no questions; {ACCEPTED_SHAPES}")
    return questions


def write_questions(path: Path, questions: Sequence[Question]) -> None:
    """Write JSONL that `read_questions` reads: one question per line, what a person reads first, empty fields left out.

    Args:
        path: the file; replaced as a whole.
        questions: in the order of the lines.
    """
    rows = map(_row, questions)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _row(question: Question) -> dict[str, object]:
    row = {name: value for name, value in asdict(question).items() if value}
    order = ("question", "answers", "kind", "supporting_ids")
    return {name: row[name] for name in (*order, *row) if name in row}


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


def split_questions(questions: Sequence[Question], test_fraction: float) -> tuple[list[Question], list[Question]]:
    """Split in file order: the last part is the test set.

    The test set has `test_fraction` of the questions, rounded up, so that a small set is never left without a test:
    478 questions at 0.2 are 382 for training and 96 for the test.

    Args:
        questions: in file order.
        test_fraction: 0 to 1.

    Returns:
        (training questions, test questions), both in file order.

    Raises:
        ConfigError: `test_fraction` is not between 0 and 1.
    """
    if not 0 <= test_fraction <= 1:
        raise ConfigError(
            f"a test fraction of {test_fraction!r} is impossible; expected 0 to 1; set data.test_fraction"
        )
    # The rounding error of 100 * 0.07 (7.000000000000001) must not cost a question.
    num_test = math.ceil(round(len(questions) * test_fraction, 9))
    num_train = len(questions) - num_test
    return list(questions[:num_train]), list(questions[num_train:])


def _parse(path: Path, source: str) -> Iterator[tuple[str, Question]]:
    kind = data_files.sniff(path)
    if kind in {"text", "csv", "mediawiki"}:
        raise DataError(f"{path} is neither JSON nor Parquet; {ACCEPTED_SHAPES}, as JSONL, a JSON array or Parquet")
    if kind == "parquet":
        names = data_files.parquet_columns(path)
        parser = parser_for(set(names), str(path))
        columns = [each for each in PARQUET_COLUMNS if each.partition(".")[0] in names]
        yield from _parse_rows(data_files.read_parquet(path, columns), source, parser)
    elif kind == "json":
        items = data_files.read_json(path)
        assert isinstance(items, list), "sniff saw the opening bracket"
        yield from _parse_rows(data_files.items_as_rows(path, items), source)
    elif kind == "jsonl" and not data_files.is_one_object(path):
        yield from _parse_rows(data_files.read_jsonl(path), source)
    elif kind == "jsonl":
        whole = data_files.read_json(path)
        assert isinstance(whole, dict), "sniff saw the opening brace"
        if isinstance(whole.get("data"), list):
            yield from parse_squad(path, whole["data"], source)
        else:
            yield from _parse_rows(data_files.items_as_rows(path, [whole]), source)


def _parse_rows(
    source_rows: Iterable[Row], source: str, parser: Parser | None = None
) -> Iterator[tuple[str, Question]]:
    for row in source_rows:
        parse = parser or parser_for(set(row.fields), row.where)
        yield row.where, parse(row, source)
