"""From documents to questions that an agent can learn from: made by rules or a teacher, checked by the real search.

A teacher is a chat model behind an OpenAI-compatible endpoint that reads passages and writes questions.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from seekling.config import EndpointConfig, MixConfig, Recipe
from seekling.corpus.making.checks import DUPLICATE, duplicates, problems
from seekling.corpus.making.language import language_of
from seekling.corpus.making.links import DESCRIBED
from seekling.corpus.making.questions import OWN_WORDS_MISS, candidates
from seekling.corpus.making.write import SOURCE
from seekling.corpus.passages import cut_passages
from seekling.corpus.readers import HtmlMode, LeftOut, read_sources
from seekling.env.environment import SearchEnv
from seekling.env.protocol import make_protocol
from seekling.env.tools import all_tools
from seekling.errors import DataError, InfrastructureError
from seekling.experts.scripted import play
from seekling.pipeline.closed_book import answered_closed_book
from seekling.pipeline.reporter import Reporter
from seekling.retrieval.library import Library
from seekling.rollout.chat import ChatClient
from seekling.text import printable
from seekling.types import UNANSWERABLE, Document, Hit, Hop, Message, Passage, Question

_CHARS_PER_TOKEN = 3.0
"""Of a small model's tokenizer on technical text, roughly: no model is needed to make questions."""
_SAMPLED_PAGES, _SAMPLED_CHARS = 200, 3000
_MAX_SHOWN = 20
_SPARE = 1.5
"""So many times more candidates than questions: checks drop some."""
_PASSAGE_WORDS, _MIN_WORDS, _PER_PASSAGE = 250, 30, 3
_TEACHER_TOKENS, _TEACHER_IN_FLIGHT = 800, 8


@dataclass(slots=True)
class Survey:
    """What a folder of documents holds."""

    documents: list[Document] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)
    """Ids of the pages without text."""
    left_out: LeftOut = field(default_factory=LeftOut)
    language: str = "english"

    @property
    def words(self) -> int:
        """Of all pages."""
        return sum(len(document.content.split()) for document in self.documents)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common())
        text = f"documents: {len(self.documents):,} ({kinds}), {self.words:,} words, mostly {self.language}"
        if self.empty:
            text += f"\nwithout text: {len(self.empty):,}, such as {', '.join(self.empty[:3])}"
        if self.left_out.others:
            text += f"\nhold no pages, left out: {self.left_out.others}"
        if lines := self.left_out.lines():
            text += f"\ncould not be read, left out: {len(lines):,}"
            text += "".join(f"\n  {printable(line)}" for line in lines[:_MAX_SHOWN])
            text += f"\n  and {len(lines) - _MAX_SHOWN:,} more" if len(lines) > _MAX_SHOWN else ""
        return text


@dataclass(slots=True)
class Made:
    """Questions, and what became of the candidates."""

    questions: list[Question]
    num_candidates: int
    dropped: Counter[str]
    """Why candidates were dropped."""
    num_missed: int
    """Of the questions, those whose own words do not find their page."""
    num_known: int
    """Questions that passed every other check, but were left out: a model answers them without the pages."""


def survey(corpus: Path, html: HtmlMode, reporter: Reporter) -> Survey:
    """Read all documents, and remember what cannot be read instead of stopping at the first.

    Raises:
        DataError: nothing can be read; names what was tried and says why.
    """
    found = Survey()
    with reporter.stages() as report:
        for number, source in enumerate(read_sources(corpus, html=html, left_out=found.left_out)):
            report("reading", number, None)
            try:
                document = source.parse()
            except DataError as error:
                found.left_out.add(source.where, error)
                continue
            if not document.content.strip():
                found.empty.append(document.id)
            found.kinds[document.metadata.get("kind", "rows")] += 1
            found.documents.append(document)
    if not found.documents:
        raise DataError(f"no page of {corpus} can be read; {found}")
    step = max(1, len(found.documents) // _SAMPLED_PAGES)
    found.language = language_of(document.content[:_SAMPLED_CHARS] for document in found.documents[::step])
    return found


def make_questions(
    found: Survey,
    library: Library,
    recipe: Recipe,
    mix: MixConfig,
    reporter: Reporter,
    *,
    extra: Sequence[Question] = (),
    closed_book: Path | None = None,
) -> Made:
    """Make questions and keep those that pass every check.

    Args:
        found: the pages.
        library: of the same pages.
        recipe: its sections env, retrieval and experts say how the expert searches.
        mix: how many of which sort.
        reporter: shows how far it is.
        extra: questions that a teacher made; checked as the others, and taken first.
        closed_book: folder of a model; what it answers without searching is dropped.

    Raises:
        DataError: not one question passed.
    """
    spare = mix.model_copy(update={"num_questions": round(_SPARE * mix.num_questions)})
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
            if not why:
                played = play(env, question, recipe.experts, title_of=library.title_of)
                why = [] if played.episode is not None else [f"the expert's searches fail: {played.reason}"]
            if why:
                dropped[why[0]] += 1
            else:
                kept.append(_labelled(question, library, recipe))
    chosen, known = _unknown_to(closed_book, kept, mix, reporter)
    if not chosen:
        raise DataError(
            f"no question could be made of {len(found.documents)} pages ({dict(dropped)}); write some yourself, or "
            "have a teacher make them (--teacher)"
        )
    num_missed = sum(OWN_WORDS_MISS in question.labels for question in chosen)
    return Made(chosen, len(asked), dropped, num_missed, len(known))


def search_env(library: Library, recipe: Recipe) -> SearchEnv:
    """The environment of a recipe without its model: tokens are estimated."""
    config = recipe.env.model_copy(update={"protocol": "tags", "failing_share": 0.0})
    tools = all_tools(library, recipe.retrieval.top_k, ())
    return SearchEnv(
        make_protocol(config, tools), tools, config, count_tokens=lambda text: round(len(text) / _CHARS_PER_TOKEN)
    )


def _labelled(question: Question, library: Library, recipe: Recipe) -> Question:
    """With a label where a search for the question as it stands does not bring what answers it."""
    if question.kind == UNANSWERABLE:
        return question
    hits = library.search(question.question, recipe.retrieval.top_k)
    facts = [(question.supporting_ids[-1], question.answers)]
    if question.is_side_by_side:
        facts = [(hop.document_id, (hop.answer,)) for hop in question.hops]
    if all(_is_found(page, answers, hits) for page, answers in facts):
        return question
    return replace(question, labels=(*question.labels, OWN_WORDS_MISS))


def _is_found(page: str, answers: Sequence[str], hits: Sequence[Hit]) -> bool:
    texts = [hit.passage.text.casefold() for hit in hits if hit.passage.document_id == page]
    return any(answer.casefold() in text for answer in answers for text in texts)


def _unknown_to(
    closed_book: Path | None, questions: Sequence[Question], mix: MixConfig, reporter: Reporter
) -> tuple[list[Question], set[tuple[str, str]]]:
    """The chosen questions, and keys of those that were left out because a model knows them; it is asked no others."""
    known, asked = set[tuple[str, str]](), set[tuple[str, str]]()
    while True:
        chosen = _chosen([question for question in questions if question.key not in known], mix)
        unasked = [question for question in chosen if question.key not in asked]
        if closed_book is None or not unasked:
            return chosen, known
        known |= answered_closed_book(unasked, closed_book, reporter)
        asked |= {question.key for question in unasked}


def _chosen(questions: Sequence[Question], mix: MixConfig) -> list[Question]:
    """Of each sort so many as are wanted; at least the set share with own words that miss, as far as there are."""
    before = questions
    two_pages = [question for question in questions if len(question.supporting_ids) > 1]
    described = [question for question in questions if DESCRIBED in question.labels]
    spare = [
        *two_pages[round(mix.two_pages * mix.num_questions) :],
        *described[round(mix.described * mix.num_questions) :],
    ]
    surplus = {question.key for question in spare}
    questions = [question for question in questions if question.key not in surplus]
    questions = sorted(questions, key=lambda question: len(question.supporting_ids) < 2)
    missed = [question for question in questions if OWN_WORDS_MISS in question.labels]
    others = [question for question in questions if OWN_WORDS_MISS not in question.labels]
    wanted = min(len(missed), max(round(mix.own_words_miss * mix.num_questions), mix.num_questions - len(others)))
    kept = {question.key for question in [*missed[:wanted], *others[: mix.num_questions - wanted]]}
    unknown = [question for question in questions if question.kind == UNANSWERABLE and question.key in kept]
    most = round((len(kept) - len(unknown)) * mix.unanswerable / (1 - mix.unanswerable))
    kept -= {question.key for question in unknown[most:]}
    return [question for question in before if question.key in kept]


def ask_teacher(endpoint: EndpointConfig, found: Survey, num_questions: int, reporter: Reporter) -> list[Question]:
    """Have a served model write about so many questions about passages drawn from all pages.

    They are checked as the rules' own are; a reply that cannot be read is passed over.

    Raises:
        ConfigError: the endpoint refuses the key, the address or the model.
    """
    client, prompt = ChatClient(endpoint), Path(__file__).with_name("teacher.txt").read_text(encoding="utf-8")
    passages = _drawn(found, -(-num_questions // _PER_PASSAGE))

    def ask(passage: Passage) -> str:
        case = {"page": passage.title, "passage": passage.text, "language": found.language}
        messages = [
            Message("system", prompt.replace("{num}", str(_PER_PASSAGE))),
            Message("user", json.dumps(case, ensure_ascii=False)),
        ]
        try:
            return client.ask(messages, max_tokens=_TEACHER_TOKENS).text
        except InfrastructureError as error:
            reporter.line(f"teacher: no reply about {passage.id}: {error}")
            return ""

    questions: dict[tuple[str, str], Question] = {}
    pool = ThreadPoolExecutor(_TEACHER_IN_FLIGHT)
    try:
        with reporter.track("teacher", len(passages)) as advance:
            for passage, reply in zip(passages, pool.map(ask, passages), strict=True):
                questions |= {question.key: question for question in _taught(passage, reply)}
                advance("")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return list(questions.values())


def _drawn(found: Survey, number: int) -> list[Passage]:
    """Passages with enough text, as good as at random, the same each time."""
    cut = (passage for each in found.documents for passage in cut_passages(each, words=_PASSAGE_WORDS))
    passages = [passage for passage in cut if len(passage.text.split()) >= _MIN_WORDS]
    return sorted(passages, key=lambda passage: hashlib.sha256(passage.id.encode("utf-8", "replace")).digest())[:number]


def _taught(passage: Passage, reply: str) -> Iterator[Question]:
    for line in reply.splitlines():
        try:
            row = json.loads(line.strip().rstrip(","))
        except ValueError:
            continue
        fields = ("question", "answer", "subject", "relation")
        texts = [row.get(name) for name in fields] if isinstance(row, dict) else []
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            continue
        text, answer, subject, relation = (str(each).strip() for each in texts)
        digest = hashlib.sha256(f"{passage.id} {text}".encode("utf-8", "replace")).hexdigest()[:10]
        hop = Hop(subject, relation, answer, passage.document_id)
        yield Question(f"te-{digest}", text, (answer,), (passage.document_id,), "single", SOURCE, (hop,), ("teacher",))
