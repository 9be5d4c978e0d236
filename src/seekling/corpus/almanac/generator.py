"""Writes an almanac to disk as it is made, in bounded memory.

Pages come province by province; questions come from a second walk over the provinces. At most forty provinces are
held at a time, whatever the size of the world.

Rule of the split: a whole province is train, dev or test, and every entity that a question names or looks up lies in
one province. So no test question concerns an entity that any other question concerns. Dev and test each have wordings
and relations that no other questions have.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from seekling.corpus.almanac.census import MAX_PAGES, PROVINCE_SIZE, World, make_world
from seekling.corpus.almanac.dice import Dice, Scatter
from seekling.corpus.almanac.pages import write_page
from seekling.corpus.almanac.province import Province
from seekling.corpus.almanac.questions import QUESTION_KINDS, Asker
from seekling.errors import ConfigError, DataError
from seekling.types import Document, Question

MIN_PAGES = 150
_CHUNK = 20
"""Provinces whose questions are shuffled together; the last chunk has up to twice as many."""
_FIELDS = ("id", "question", "answers", "supporting_ids", "source", "kind", "labels", "hops")
"""Of a question, in the order in which a reader looks: what is asked and answered, then what it takes."""
_CYCLE = ("single",) * 9 + ("bridge",) * 4 + ("chain",) + ("several",) * 2 + ("unanswerable",) * 4
"""Every twenty questions have this mix, in a new order each time."""

Side = Literal["train", "dev", "test"]
Progress = Callable[[str, int, int], None]
"""Called with what is being written, how much is done and how much there is."""


@dataclass(frozen=True, slots=True)
class AlmanacSummary:
    """What was written."""

    out: Path
    pages: int
    seed: int
    num_questions: dict[str, int]
    """Of train, dev and test."""
    num_provinces: dict[str, int]
    """That each of these asks about."""
    num_words: int
    """Words of all pages."""


def generate(pages: int, seed: int, out: Path, *, progress: Progress | None = None) -> AlmanacSummary:
    """Write corpus.jsonl, train.jsonl, dev.jsonl and test.jsonl of an almanac; same arguments, same bytes.

    Args:
        pages: how many pages, 150 to 1,000,000.
        seed: which world; any integer from 0.
        out: folder to make; it must not exist or be empty. It appears only when all files are complete.
        progress: told now and then how far the work is.

    Raises:
        ConfigError: pages or seed is out of range.
        DataError: `out` exists and is not an empty folder, or cannot be made.
    """
    if not MIN_PAGES <= pages <= MAX_PAGES:
        raise ConfigError(
            f"an almanac of {pages} pages cannot be made; expected {MIN_PAGES} to {MAX_PAGES:,}: a smaller world has "
            "no provinces to keep for dev and test, a larger one runs out of names"
        )
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected 0 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} already exists and is not an empty folder; name a new one or remove it first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # A folder beside the target, so that the final rename stays within one file system.
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise DataError(f"cannot make {out}: {error}; name a folder that can be written to") from error
    try:
        summary = _write_all(make_world(pages, seed), out, temporary, progress or (lambda what, done, total: None))
        # mkdtemp makes folders private; an almanac is as public as the folder it lies in.
        temporary.chmod(0o755)
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return summary


def _write_all(world: World, out: Path, folder: Path, tell: Progress) -> AlmanacSummary:
    num_words = 0

    def page_rows() -> Iterator[dict[str, object]]:
        nonlocal num_words
        for page in write_corpus(world):
            num_words += page.content.count(" ")
            yield {"id": page.id, "title": page.title, "content": page.content}

    def write(name: str, what: str, rows: Iterable[dict[str, object]], total: int) -> None:
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for number, row in enumerate(rows, start=1):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                if number % 500 == 0:
                    tell(what, number, total)

    write("corpus", "pages", page_rows(), world.pages)
    sides = split_provinces(world)
    numbers: dict[str, int] = {side: num_questions(world.pages, side) for side in sides}
    for side, chunks in sides.items():
        questions = enumerate(write_questions(world, side, chunks, numbers[side]))
        made = (asdict(replace(question, id=f"{side}-{number}")) for number, question in questions)
        rows = ({name: fields[name] for name in _FIELDS} for fields in made)
        write(side, f"{side} questions", rows, numbers[side])
    num_provinces: dict[str, int] = {side: sum(map(len, chunks)) for side, chunks in sides.items()}
    return AlmanacSummary(out, world.pages, world.seed, numbers, num_provinces, num_words)


def num_questions(pages: int, side: Side) -> int:
    """How many questions an almanac of some pages has for train, dev or test."""
    if side == "train":
        return max(300, 5 * pages)
    return min(2000, max(400 if side == "test" else 200, pages * (3 if side == "test" else 2) // 10))


def write_corpus(world: World) -> Iterator[Document]:
    """The pages of a world in order of their ids."""
    for number in range(world.num_provinces):
        province = Province(world, number)
        for entity in province.entities:
            yield write_page(entity, world.seed, province.entities[0].link)


def split_provinces(world: World) -> dict[Side, list[list[int]]]:
    """The provinces of train, dev and test, in chunks of neighbours whose order is random.

    Dev and test get about a hundred questions from each of their provinces, and at most a quarter of the provinces
    each. A partial last province belongs to train.
    """
    num_full = world.pages // PROVINCE_SIZE
    scattered = map(Scatter(num_full, world.seed, "held-out provinces"), range(num_full))
    sides: tuple[Side, ...] = ("dev", "test")
    sizes = [min(-(-num_questions(world.pages, side) // 100), max(1, num_full // 4)) for side in sides]
    held_out = {side: sorted(itertools.islice(scattered, size)) for side, size in zip(sides, sizes, strict=True)}
    taken = set(itertools.chain(*held_out.values()))
    # The last chunk takes the rest: alone, a single small province could not ask all kinds of questions.
    num_chunks = max(1, world.num_provinces // _CHUNK)
    ends = [*(_CHUNK * i for i in range(1, num_chunks)), world.num_provinces]
    chunks = [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    order = Scatter(len(chunks), world.seed, "chunks")
    train = [[n for n in chunks[order(i)] if n not in taken] for i in range(len(chunks))]
    return {
        "train": [chunk for chunk in train if chunk],
        **{side: [each[i : i + _CHUNK] for i in range(0, len(each), _CHUNK)] for side, each in held_out.items()},
    }


def write_questions(world: World, side: Side, chunks: list[list[int]], total: int) -> Iterator[Question]:
    """`total` questions with the default mix in every twenty."""
    sizes = [sum(_num_pages(world, number) for number in chunk) for chunk in chunks]
    done_pages = written = 0
    for chunk, size in zip(chunks, sizes, strict=True):
        done_pages += size
        upto = total * done_pages // sum(sizes)
        kinds = [_kind_at(world.seed, side, position) for position in range(written, upto)]
        yield from _questions_of_chunk(world, side, chunk, size, kinds)
        written = upto


def _questions_of_chunk(world: World, side: Side, chunk: list[int], size: int, kinds: list[str]) -> Iterator[Question]:
    by_kind: dict[str, list[Question]] = {kind: [] for kind in QUESTION_KINDS}
    for number in chunk:
        province = Province(world, number)
        asker = Asker(province, "" if side == "train" else side, world.seed, world.namer)
        for kind in QUESTION_KINDS:
            # More than its share, because a small province may have too few to compare.
            share = kinds.count(kind) * len(province.entities) * 5 // (size * 4) + 4
            by_kind[kind] += asker.ask(kind, share)
    dice = Dice(world.seed, "shuffle", side, chunk[0])
    queues = {kind: iter(dice.shuffled(rows)) for kind, rows in by_kind.items()}
    for kind in kinds:
        yield next(queues[kind])


def _num_pages(world: World, number: int) -> int:
    return min(PROVINCE_SIZE, world.pages - number * PROVINCE_SIZE)


def _kind_at(seed: int, side: Side, position: int) -> str:
    cycle, place = divmod(position, len(_CYCLE))
    return Dice(seed, "cycle", side, cycle).shuffled(_CYCLE)[place]
