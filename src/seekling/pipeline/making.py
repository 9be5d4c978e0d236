"""From documents to questions that an agent can learn from: made by rules, and checked by the real search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seekling.config import Recipe
from seekling.corpus.making.checks import DUPLICATE, duplicates, problems
from seekling.corpus.making.language import language_of
from seekling.corpus.making.questions import OWN_WORDS_MISS, Mix, candidates
from seekling.corpus.readers import HtmlMode, read_sources
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.tools import all_tools
from seekling.errors import DataError
from seekling.experts.scripted import play
from seekling.pipeline.reporter import Reporter
from seekling.retrieval.library import Library
from seekling.types import UNANSWERABLE, Document, Question

_CHARS_PER_TOKEN = 3.0
"""Of a small model's tokenizer on technical text, roughly: no model is needed to make questions."""
_SAMPLED_PAGES, _SAMPLED_CHARS = 200, 3000
_MAX_SHOWN = 10
_SPARE = 1.5
"""So many times more candidates than questions: checks drop some."""


@dataclass(slots=True)
class Survey:
    """What a folder of documents holds."""

    documents: list[Document] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    """What is wrong with each page that cannot be read."""
    empty: list[str] = field(default_factory=list)
    """Ids of the pages without text."""
    language: str = "english"

    @property
    def words(self) -> int:
        """Of all pages."""
        return sum(len(document.content.split()) for document in self.documents)


@dataclass(slots=True)
class Made:
    """Questions, and what became of the candidates."""

    questions: list[Question]
    num_candidates: int
    dropped: Counter[str]
    """Why candidates were dropped."""
    num_missed: int
    """Of the questions, those whose own words do not find their page."""


def survey(corpus: Path, html: HtmlMode, reporter: Reporter) -> Survey:
    """Read all documents, and remember what cannot be read instead of stopping at the first.

    Raises:
        DataError: there is nothing to read, or some of it cannot be read; names it and says why.
    """
    found = Survey()
    with reporter.stages() as report:
        for number, source in enumerate(read_sources(corpus, html=html)):
            report("reading", number, None)
            try:
                document = source.parse()
            except DataError as error:
                found.unreadable.append(str(error))
                continue
            if not document.content.strip():
                found.empty.append(document.id)
            found.kinds[document.metadata.get("kind", "rows")] += 1
            found.documents.append(document)
    if found.unreadable:
        shown = "\n  ".join(found.unreadable[:_MAX_SHOWN])
        raise DataError(
            f"{len(found.unreadable)} of {len(found.unreadable) + len(found.documents)} pages cannot be read:\n  "
            f"{shown}\nCorrect them, or leave them out by names that start with a dot"
        )
    step = max(1, len(found.documents) // _SAMPLED_PAGES)
    found.language = language_of(document.content[:_SAMPLED_CHARS] for document in found.documents[::step])
    return found


def make_questions(
    found: Survey, library: Library, recipe: Recipe, mix: Mix, reporter: Reporter, *, extra: Sequence[Question] = ()
) -> Made:
    """Make questions and keep those that pass every check.

    `extra` are questions that a teacher made: checked as the others, and taken first. How the expert searches is said
    by the sections env, retrieval and experts of the recipe.

    Raises:
        DataError: not one question passed.
    """
    spare = replace(mix, total=round(_SPARE * mix.total))
    asked = [*extra, *candidates(found.documents, found.language, spare)]
    pages = {document.id: document for document in found.documents}
    dropped: Counter[str] = Counter()
    twice = duplicates(asked)
    kept: list[Question] = []
    env = search_env(library, recipe)
    with reporter.track("checking", len(asked)) as advance:
        for question in asked:
            advance("")
            why = problems(question, pages.get) or ([DUPLICATE] * (question.key in twice))
            why = why or [reason for reason in [_not_found(env, question, recipe, library)] if reason]
            if why:
                dropped[why[0]] += 1
            else:
                kept.append(_labelled(question, library, recipe))
    chosen = _chosen(kept, mix)
    if not chosen:
        raise DataError(
            f"no question could be made of {len(found.documents)} pages ({dict(dropped)}); write some yourself, or "
            "have a teacher make them (--teacher)"
        )
    num_missed = sum(OWN_WORDS_MISS in question.labels for question in chosen)
    return Made(chosen, len(asked), dropped, num_missed)


def search_env(library: Library, recipe: Recipe) -> SearchEnv:
    """The environment of a recipe without its model: tokens are estimated."""
    config = recipe.env.model_copy(update={"protocol": "tags", "failing_share": 0.0})
    tools = all_tools(library, recipe.retrieval.top_k, ())
    return SearchEnv(
        make_protocol(config, tools), tools, config, count_tokens=lambda text: round(len(text) / _CHARS_PER_TOKEN)
    )


def _not_found(env: SearchEnv, question: Question, recipe: Recipe, library: Library) -> str:
    """Why the scripted expert cannot answer; empty where it can."""
    result = play(env, question, recipe.experts, title_of=library.title_of)
    return "" if result.episode is not None else f"the expert's searches fail: {result.reason}"


def _labelled(question: Question, library: Library, recipe: Recipe) -> Question:
    """With a label where a search for the question as it stands does not bring its page."""
    if question.kind == UNANSWERABLE:
        return question
    hits = library.search(question.question, recipe.retrieval.top_k)
    texts = [hit.passage.text.casefold() for hit in hits if hit.passage.document_id == question.supporting_ids[-1]]
    if any(answer.casefold() in text for answer in question.answers for text in texts):
        return question
    return replace(question, labels=(*question.labels, OWN_WORDS_MISS))


def _chosen(questions: Sequence[Question], mix: Mix) -> list[Question]:
    """So many as are wanted; of those whose own words miss their page at least the set share, as far as there are."""
    missed = [question for question in questions if OWN_WORDS_MISS in question.labels]
    others = [question for question in questions if OWN_WORDS_MISS not in question.labels]
    wanted = min(len(missed), max(round(mix.own_words_miss * mix.total), mix.total - len(others)))
    kept = {question.key for question in [*missed[:wanted], *others[: mix.total - wanted]]}
    unknown = [question for question in questions if question.kind == UNANSWERABLE and question.key in kept]
    most = round((len(kept) - len(unknown)) * mix.unanswerable / (1 - mix.unanswerable))
    kept -= {question.key for question in unknown[most:]}
    return [question for question in questions if question.key in kept]


def describe(found: Survey) -> Iterator[str]:
    """What a survey found, line by line."""
    words = found.words
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.kinds.most_common())
    yield f"documents: {len(found.documents):,} ({kinds}), {words:,} words, mostly {found.language}"
    if found.empty:
        yield f"without text: {len(found.empty):,}, such as {', '.join(found.empty[:3])}"
