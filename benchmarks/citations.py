"""How often the quoted sentence supports a right answer, by the almanac's own facts.

    python benchmarks/citations.py RUN [--policy rl] [--show 20]

Reads a run's evaluated episodes of answerable questions whose answer is right, quotes as `ask` does, and compares with
the world that the pages were written from: of each page it is known which of its sentences was written to state which
fact. A quote supports the answer when it stands in the page of the fact, holds its value, and was written to state it.
Questions over several pages count their last fact; of those that compare or count, every fact. Facts on the way there
are counted apart. An episode that came to a right answer by another page is counted as not supported.
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from seekling.corpus.almanac import generator, pages
from seekling.corpus.almanac.census import make_world
from seekling.corpus.almanac.model import Entity
from seekling.corpus.almanac.province import KINDS
from seekling.corpus.almanac.spec import Wording
from seekling.corpus.sentences import sentences
from seekling.evaluate.evidence import fold, holds
from seekling.evaluate.intervals import format_rate, rate_of
from seekling.retrieval.store import DocumentStore
from seekling.serve.quotes import Quote, find_quotes
from seekling.types import UNANSWERABLE, Document, EpisodeRecord, Hop

Told = dict[tuple[str, str], list[str]]
"""(page, words of the relation) -> folded sentences that were written to state it."""


def told_facts(run: Path) -> Told:
    """Write the run's world again, and note what each sentence is written to state.

    Pages that come out otherwise than those of the run have no sentences: another version wrote them.
    """
    data = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))["data"]
    told: Told = defaultdict(list)

    class Noting(pages._Writer):
        def tell(self, wording: Wording) -> str:
            sentence = super().tell(wording)
            note(self.entity, wording, sentence)
            return sentence

    def note(entity: Entity, wording: Wording, sentence: str) -> None:
        for key in wording.slots & entity.facts.keys():
            parts = [fold(each.text) for each in sentences(Document("", "", sentence))]
            holding = [part for part in parts if any(holds(part, fold(each)) for each in entity.facts[key].answers)]
            told[entity.id, KINDS[entity.kind].relations[key].label] += holding

    pages._Writer = Noting  # type: ignore[misc]
    documents = DocumentStore(run / "index")
    changed = set()
    for page in generator.write_corpus(make_world(data["almanac_pages"], data["almanac_seed"])):
        old = documents.find(page.id)
        if old is None or old.content != page.content:
            changed.add(page.id)
    if changed:
        print(f"{len(changed)} pages are another version's and are left out")
    return {key: texts for key, texts in told.items() if texts and key[0] not in changed}


def is_supported(hop: Hop, answers: tuple[str, ...], quotes: tuple[Quote, ...], told: Told) -> bool:
    """Whether a quote stands in the fact's page, holds its value and was written to state it."""
    for quote in quotes:
        said = fold(quote.text)
        states = any(text in said for text in told.get((hop.document_id, hop.relation), ()))
        if quote.document_id == hop.document_id and states and any(holds(said, fold(each)) for each in answers):
            return True
    return False


def main() -> None:
    """Print k/n with intervals, and what is not supported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--policy", default="rl")
    parser.add_argument("--show", type=int, default=0, help="so many episodes drawn at random, to read")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--failed", action="store_true", help="print those that are not supported")
    args = parser.parse_args()
    told, documents = told_facts(args.run), DocumentStore(args.run / "index")
    counts: dict[str, Counter[bool]] = defaultdict(Counter)
    shown = []
    for line in (args.run / "episodes" / f"eval-{args.policy}.jsonl").read_text(encoding="utf-8").splitlines():
        record = EpisodeRecord.from_json(json.loads(line))
        question, episode = record.question, record.episode
        if not record.scores.get("em") or question.kind == UNANSWERABLE or not question.hops:
            continue
        if any((hop.document_id, hop.relation) not in told for hop in question.hops):
            counts["left out: no facts known"][False] += 1
            continue
        if args.limit and sum(counts["answer"].values()) >= args.limit:
            break
        quotes = find_quotes(episode, question.question, documents.find, lambda page: "")
        *before, last = question.hops
        needed = question.hops if question.is_side_by_side else (last,)
        others = () if question.is_side_by_side else question.answers
        is_right = all(is_supported(hop, (hop.answer, *others), quotes, told) for hop in needed)
        counts["answer"][is_right] += 1
        counts[f"answer, {question.kind}"][is_right] += 1
        if not question.is_side_by_side:
            for hop in before:
                supported = is_supported(hop, (hop.answer,), quotes, told)
                counts["facts on the way"][supported] += 1
        counts["quotes per answer"][True] += len(quotes)
        counts["no quote at all"][not quotes] += 1
        text = [f"{'ok ' if is_right else 'NOT'} {question.question}  = {episode.answer}"]
        text += [f"      hop {hop.query_subject} | {hop.relation} | {hop.answer} [{hop.document_id}]" for hop in needed]
        text += [f"      quote [{each.document_id}] {each.title} / {each.section}: {each.text}" for each in quotes]
        text += [f"      said {turn.action.strip()!r}" for turn in episode.turns if not is_right]
        shown.append((is_right, "\n".join(text)))
    for name, count in counts.items():
        print(f"{name}: {format_rate(rate_of(count[True], count[True] + count[False]))}")
    chosen = [text for is_right, text in shown if not is_right] if args.failed else []
    chosen += random.Random(0).sample([text for _, text in shown], min(args.show, len(shown)))
    print("\n".join(chosen))


if __name__ == "__main__":
    main()
