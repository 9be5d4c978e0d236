"""Recall of pages and speed of search, on folders that hold a corpus.jsonl and a qa.jsonl.

    python benchmarks/recall.py FOLDER... [--kind bm25|dense|hybrid] [--passage-words N ...] [--questions N] [--pages N]
                                          [--order file|id] [--lead]

Recall@k of a question is the share of its supporting pages that are among the first k pages of a page search; k/n sums
these shares over the questions. Questions without supporting pages are left out and counted. Indexes are built in
a temporary folder. A subset (`--questions`, `--pages`) keeps the first questions and their pages, then other pages in
file order: fewer distractors make it easier, so compare subsets only with the same subset. `--order id` takes questions
by the numbers in their ids, which for questions taken from a published set is that set's order. `--lead` keeps of each
page what comes before its first section.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seekling.config import IndexConfig
from seekling.corpus.questions import read_questions
from seekling.corpus.readers import read_documents
from seekling.evaluate.intervals import wilson_interval
from seekling.retrieval.index import build_index, open_index
from seekling.retrieval.library import open_library
from seekling.types import Question

CUTS = (3, 5, 10)


@dataclass(frozen=True)
class Measured:
    """What one index over one set of pages showed."""

    recalled: dict[int, float]
    num_passages: int
    build_s: float
    search_s: float
    pages_s: float


def main() -> None:
    """Read the arguments and print a line per folder and passage length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--kind", nargs="+", default=["bm25"], choices=["bm25", "dense", "hybrid"])
    parser.add_argument("--encoder", default=IndexConfig().encoder)
    parser.add_argument("--passage-words", nargs="+", type=int, default=[IndexConfig().passage_words])
    parser.add_argument("--questions", type=int, default=0, help="first N questions; 0: all")
    parser.add_argument("--pages", type=int, default=0, help="keep about N pages; 0: all")
    parser.add_argument("--order", default="file", choices=["file", "id"], help="which questions come first")
    parser.add_argument("--lead", action="store_true", help="keep only each page's text before its first section")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        every = read_questions(folder / "qa.jsonl")
        if arguments.order == "id":
            every.sort(key=lambda question: [int(number) for number in re.findall(r"\d+", question.id)])
        questions = [each for each in every[: arguments.questions or None] if each.supporting_ids]
        with tempfile.TemporaryDirectory() as work:
            corpus = keep_pages(folder / "corpus.jsonl", questions, arguments.pages, Path(work), lead=arguments.lead)
            for words in arguments.passage_words:
                for kind in arguments.kind:
                    config = IndexConfig(kind=kind, encoder=arguments.encoder, passage_words=words)
                    measured = measure(corpus, questions, config, Path(work) / f"{kind}-{words}")
                    print_line(folder.name, config, measured, len(questions))


def keep_pages(corpus: Path, questions: Sequence[Question], num_pages: int, work: Path, *, lead: bool) -> Path:
    """The corpus itself, or a copy of the questions' pages and of others up to `num_pages` (0: all); or their leads."""
    if not num_pages and not lead:
        return corpus
    wanted = {page for question in questions for page in question.supporting_ids}
    room = max(0, num_pages - len(wanted)) if num_pages else sys.maxsize
    rows = []
    for document in read_documents(corpus):
        if document.id in wanted or room > 0:
            room -= document.id not in wanted
            content = (
                re.split(r"^##", document.content, maxsplit=1, flags=re.MULTILINE)[0] if lead else document.content
            )
            rows.append(json.dumps({"id": document.id, "title": document.title, "content": content}))
    subset = work / "corpus.jsonl"
    subset.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return subset


def measure(corpus: Path, questions: Sequence[Question], config: IndexConfig, out: Path) -> Measured:
    """Build an index, ask every question for pages and, timed, one by one for 3 passages."""
    started = time.perf_counter()
    record = build_index(corpus, out, config)
    build_s = time.perf_counter() - started
    retriever, library = open_index(out), open_library(out)
    started = time.perf_counter()
    for question in questions:
        retriever.search([question.question], 3)
    search_s = time.perf_counter() - started
    recalled = dict.fromkeys(CUTS, 0.0)
    started = time.perf_counter()
    for question in questions:
        pages = [page["page_id"] for page in library.search_pages(question.question, max(CUTS))]
        wanted = set(question.supporting_ids)
        for cut in CUTS:
            recalled[cut] += len(wanted.intersection(pages[:cut])) / len(wanted)
    pages_s = time.perf_counter() - started
    return Measured(recalled, record.counts.passages, build_s, search_s, pages_s)


def print_line(name: str, config: IndexConfig, measured: Measured, num_questions: int) -> None:
    """One line: recalls with k/n and 95 % intervals, then speeds."""
    recalls = []
    for cut, k in measured.recalled.items():
        low, high = wilson_interval(k, num_questions)
        recalls.append(f"@{cut} {k / num_questions:.3f} ({k:.6g}/{num_questions}, {low:.3f}-{high:.3f})")
    print(
        f"{name:12} {config.kind:6} {config.passage_words:4} words  {measured.num_passages:7,} passages  "
        f"{'  '.join(recalls)}  build {measured.build_s:.1f} s  "
        f"{num_questions / measured.search_s:,.0f} queries/s (3 passages)  "
        f"{num_questions / measured.pages_s:,.0f} queries/s (10 pages)",
        flush=True,
    )


if __name__ == "__main__":
    main()
