"""A scripted expert: it knows the supporting pages, but has to find them by acting through the real environment.

Its queries really retrieve and its programs really run. When what comes back does not say the fact, it says so and
tries other words; when none works the episode fails and is dropped by `collect`. It answers only what the environment
has shown. Where no page says the answer, it finds that out in the same way: it tries as it always does, and says so.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from seekling.config import ExpertConfig
from seekling.env.environment import SearchEnv, Session, StepResult
from seekling.env.protocol import Action, Protocol
from seekling.env.tools import LISTING_TOOLS
from seekling.env.withholding import says
from seekling.errors import DataError
from seekling.experts import words
from seekling.text import holds_words
from seekling.types import UNANSWERABLE, UNKNOWN_ANSWER, Episode, Hop, Question, StopReason, Turn


class ExpertResult(NamedTuple):
    """An expert's episode, or why there is none."""

    episode: Episode | None
    reason: str = ""
    """Why it failed; empty for a success."""


def play(
    env: SearchEnv,
    question: Question,
    config: ExpertConfig | None = None,
    *,
    title_of: Callable[[str], str] = lambda page: page,
    after: Episode | None = None,
) -> ExpertResult:
    """Answer one question by searching.

    Args:
        env: the same environment in which the policy will be trained.
        question: with `hops`, or else with the answer and perhaps its pages.
        config: how the expert goes about it; the default settings when None.
        title_of: gives a page's title for its id; needed where a question has several pages and no hops.
        after: a policy's episode of the question: its searches are made again, as far as they were valid, and the
            expert goes on from there (DAgger, arXiv:1011.0686). None: from the beginning.

    The environment showed every fact that is used in the episode.
    """
    started = time.perf_counter()
    with env.start(question) as session:
        run = _Run(session, env.protocol, question, config or ExpertConfig(), title_of)
        try:
            if after is not None:
                run.replay(after)
            run.play()
        except DataError:
            return ExpertResult(None, "the protocol cannot write the query or the answer")
        except _FailedError as failure:
            return ExpertResult(None, str(failure))
        episode = Episode(
            question_id=question.id,
            source=question.source,
            protocol=env.protocol.name,
            prompt=tuple(session.prompt),
            turns=tuple(run.turns),
            answer=run.turns[-1].payload,
            stop_reason=StopReason.ANSWERED,
            duration_s=time.perf_counter() - started,
        )
    return ExpertResult(episode)


def first_plan(env: SearchEnv, question: Question, config: ExpertConfig | None = None) -> tuple[str, str] | None:
    """What `play` would plan, without searching: enough to learn what is asked for, at a fraction of the cost.

    Returns:
        The text of the first turn, and what of it leads up to the end of the plan; None where the protocol cannot
        write it.
    """
    with env.start(question) as session:
        run = _Run(session, env.protocol, question, config or ExpertConfig(), lambda page: page)
        try:
            text, thought = run.begin()
        except DataError:
            return None
    return text, text[: text.index(thought) + len(thought)]


class _FailedError(Exception):
    """Why an episode is no example."""


class _Run:
    """One episode as it goes."""

    def __init__(
        self,
        session: Session,
        protocol: Protocol,
        question: Question,
        config: ExpertConfig,
        title_of: Callable[[str], str],
    ) -> None:
        self.turns: list[Turn] = []
        self._session, self._protocol, self._question, self._config = session, protocol, question, config
        self._title_of = title_of
        self._hops = _hops(question)
        self._is_code, self._is_unanswerable = protocol.name == "code", question.kind == UNANSWERABLE
        self._is_by_pages = not question.hops and len(question.supporting_ids) > 1
        """Only the pages are known, and there are several."""
        self._is_together = question.is_side_by_side and self._is_code and bool(question.hops)
        """One program looks up everything."""
        self._thought = ""
        """Begins the next turn: what the last observation said."""
        self._found_hop: Hop | None = None
        """Whose value the thought ends with; None: no value."""
        self._has_read = True
        """Whether the thought has said so."""

    def replay(self, episode: Episode) -> None:
        """Take over a policy's turns up to its first one that was no search."""
        for turn in itertools.takewhile(lambda turn: turn.observation and turn.kind != "invalid", episode.turns):
            result = self._session.step(turn.action, finish="stop")
            if result.is_over or result.turn.observation != turn.observation:
                raise _FailedError("the policy's searches found something else this time")
            self.turns.append(replace(turn, is_given=True))
            self._has_read = False

    def begin(self) -> tuple[str, str]:
        """The text of the first turn, and its thought."""
        question, hops = self._question, self._hops
        if self._is_by_pages:
            thought = question.question.strip()
            action = self._search(thought.rstrip("?"))
        elif self._is_together:
            thought = words.plan(question, hops, hops[0].relation)
            action = Action("code", words.program_of_all(hops))
        else:
            way, action = next(self._untried(self._ways(hops)))
            thought = words.plan(question, hops, way.need)
        return self._protocol.act(action, think=thought), thought

    def play(self) -> None:
        question, hops = self._question, self._hops
        if self._is_by_pages:
            self._look_up_pages()
        elif self._is_together:
            self._look_up_together()
        elif all(self._look_up(hops[number:]) for number in range(len(hops))) and self._is_unanswerable:
            raise _FailedError("the pages say all of it")
        self._thought = _closed(self._thought)
        if self._is_unanswerable:
            answer = question.answers[0]
        else:
            answer = self._shown_answer()
            if hops[-1].claim:
                self._thought += f" {words.FITS} {answer}."
            if question.is_side_by_side and question.hops:
                self._thought += f" {_values(hops)}"
        result = self._step(self._protocol.answer_action(answer))
        if result.stop_reason is not StopReason.ANSWERED:
            raise _FailedError(_why_over(result))

    def _ways(self, hops: Sequence[Hop]) -> list[words.Try]:
        """Ways to look up the first of these hops; the question's own words are about the last it asks for."""
        in_own_words = _is_last(hops) and _draw(self._question) < self._config.own_words_share
        return words.tries(hops[0], self._question, in_own_words=in_own_words)

    def _look_up(self, hops: Sequence[Hop]) -> bool:
        """Search for the first of the hops that are left, in several wordings; whether it was shown."""
        hop, is_last, ways = hops[0], _is_last(hops), self._ways(hops)
        if any(self._is_shown(hop, turn, is_last) for turn in self.turns):
            self._thought = f"{_closed(self._thought)} {self._found(hop, ways[0])}".strip()
            self._has_read = True
            return True
        if not self._has_read:
            self._thought = f"{self._verdict(hop, ways[0])} "
            self._has_read = True
        for way, action in self._untried(ways):
            self._thought += words.onward(self._question, hops, way.need, after=self._found_hop)
            self._act(action)
            if self._is_shown(hop, self.turns[-1], is_last):
                self._thought = self._found(hop, way)
                return True
            self._thought, self._found_hop = f"{self._verdict(hop, way)} ", None
        if not self._is_unanswerable:
            raise _FailedError("the fact was not retrieved")
        return False

    def _untried(self, ways: Sequence[words.Try]) -> Iterator[tuple[words.Try, Action]]:
        """Ways of which the search was not made before, as many as the expert attempts."""
        tried = {turn.payload for turn in self.turns}
        num_left = self._config.attempts
        for way in ways:
            action = Action("code", way.program) if self._is_code else self._protocol.search_action(way.query)
            if num_left and action.payload not in tried:
                num_left -= 1
                tried.add(action.payload)
                yield way, action

    def _look_up_pages(self) -> None:
        """Where only the pages are known: search for what is asked, then for the pages that this did not bring.

        A page is searched for by its title only where the question or a passage names it, as a policy would have to.
        """
        question = self._question
        self._thought = question.question.strip()
        if not self.turns:
            self._act(self._search(question.question.strip().rstrip("?")))
        missing = [page for page in question.supporting_ids if not self._is_read(page)]
        while missing:
            known = f"{question.question}\n{self._seen}"
            named = [page for page in missing if holds_words(known, words.plain_title(self._title_of(page)))]
            if not named:
                raise _FailedError("nothing names the page to look up")
            title = self._title_of(named[0])
            found = [self._title_of(page) for page in question.supporting_ids if self._is_read(page)]
            self._thought = f"{found[-1]} is here. {title}?" if found else f"Not here. {title}?"
            self._act(self._search(title))
            missing.remove(named[0])
            if not self._is_read(named[0]):
                raise _FailedError("the page was not retrieved")
        if self._is_unanswerable:
            self._thought = f"{question.question.strip()} Not here."
            return
        if not any(holds_words(self._seen, answer) or answer in ("yes", "no") for answer in question.answers):
            raise _FailedError("the fact was not retrieved")
        self._thought = f"{question.question.strip()} {self._shown_answer()}."

    def _search(self, query: str) -> Action:
        return Action("code", words.program_of_pages(query)) if self._is_code else self._protocol.search_action(query)

    def _is_read(self, page: str) -> bool:
        """Whether text of a page came back."""
        return any(page in ids for turn in self.turns for ids in _pages_read(turn))

    def _found(self, hop: Hop, way: words.Try) -> str:
        """What the page says: "[Orla Mill] built by: Tobias Wren"; what is left of the plan comes after it."""
        self._found_hop = hop
        if not hop.relation:
            return f"{way.need} {self._shown_answer()}"
        if hop.claim:
            return f"[{self._named(hop)}] {hop.claim}: {words.HERE}"
        return f"[{self._named(hop)}] {way.need}: {hop.answer}"

    def _verdict(self, hop: Hop, way: words.Try) -> str:
        """Why the last observation does not suffice: "[Orla Mill] built by: not here."."""
        last = self.turns[-1]
        if not hop.relation:
            return f"{way.need} {words.NOT_HERE if _is_right_page(hop, last) else words.OTHER_PAGE}"
        if (hop.document_id and _is_right_page(hop, last)) or not self._is_title(hop):
            return f"[{self._named(hop)}] {way.need}: {words.NOT_HERE}"
        read = next((page for ids in _pages_read(last) for page in ids), "")
        return f"[{self._title_of(read) if read else 'nothing'}] {words.OTHER_PAGE}"

    def _is_title(self, hop: Hop) -> bool:
        """Whether a page has the subject for its title, so that titles tell which page is the one.

        Not so where many subjects share a page: there a neighbour's value is taken when the subject is not named.
        """
        page = hop.document_id
        return not page or words.plain_title(self._title_of(page)).casefold() == hop.query_subject.casefold()

    def _named(self, hop: Hop) -> str:
        """What a thought says that it reads about."""
        return self._title_of(hop.document_id) if hop.document_id and self._is_title(hop) else hop.query_subject

    def _look_up_together(self) -> None:
        """One program for all facts, and one that compares them."""
        hops = self._hops
        self._thought = words.plan(self._question, hops, hops[0].relation)
        self._act(Action("code", words.program_of_all(hops)))
        if not all(self._is_shown(hop, self.turns[-1], is_last=False) for hop in hops):
            raise _FailedError("the fact was not retrieved")
        self._thought = _values(hops)
        program = words.program_that_compares(self._question, hops)
        if program:
            self._act(Action("code", program))
            if not any(holds_words(self.turns[-1].observation, answer) for answer in self._question.answers):
                raise _FailedError("the program computed another answer")
            self._thought = ""

    def _act(self, action: Action) -> None:
        result = self._step(action)
        if result.is_over:
            raise _FailedError(_why_over(result))

    def _step(self, action: Action) -> StepResult:
        result = self._session.step(self._protocol.act(action, think=self._thought.strip()), finish="stop")
        self.turns.append(result.turn)
        if says(result.turn.observation, self._question.withheld):
            raise _FailedError("a withheld answer was shown")
        return result

    def _is_shown(self, hop: Hop, turn: Turn, is_last: bool) -> bool:
        """Whether a turn's observation says a fact. What no page says is never shown."""
        is_false = hop.claim and not self._question.withheld
        if self._is_unanswerable and (is_false or hop.answer in ("", UNKNOWN_ANSWER)):
            return False
        direct = is_last and not self._question.is_side_by_side and not self._is_unanswerable
        wanted = (hop.answer, *self._question.answers) if direct else (hop.claim or hop.answer,)
        return _is_right_page(hop, turn) and any(holds_words(turn.observation, answer) for answer in wanted if answer)

    def _shown_answer(self) -> str:
        """The accepted answer that was seen, the canonical one first."""
        answers = self._question.answers
        return next((answer for answer in answers if holds_words(self._seen, answer)), answers[0])

    @property
    def _seen(self) -> str:
        return "\n".join(turn.observation for turn in self.turns)


def _hops(question: Question) -> Sequence[Hop]:
    """In the order in which they are looked up: first what is asked, then what is taken for granted."""
    if question.hops:
        return sorted(question.hops, key=lambda hop: bool(hop.claim))
    page = question.supporting_ids[0] if question.supporting_ids else ""
    return (Hop(question.question.strip().rstrip("?"), "", question.answers[0], page),)


def _is_last(hops: Sequence[Hop]) -> bool:
    """Whether the first of these is the last that the question asks for."""
    return not hops[0].claim and all(hop.claim for hop in hops[1:])


def _closed(thought: str) -> str:
    """With the full stop that a value at the end lacks."""
    text = thought.strip()
    return text if not text or text[-1] in ".?" else f"{text}."


def _values(hops: Sequence[Hop]) -> str:
    return "; ".join(f"{hop.query_subject}: {hop.answer}" for hop in hops) + "."


def _pages_read(turn: Turn) -> list[Sequence[str]]:
    """Ids of the pages of which text came back, call by call; lists of pages do not count."""
    return [call.document_ids for call in turn.calls if call.name not in LISTING_TOOLS]


def _is_right_page(hop: Hop, turn: Turn) -> bool:
    """Whether text of the hop's page came back."""
    return not hop.document_id or any(hop.document_id in ids for ids in _pages_read(turn))


def _draw(question: Question) -> float:
    """A number in [0, 1) that is a function of the question's id alone; the same for its twin."""
    digest = hashlib.sha256(repr((question.source, question.id.removesuffix("-withheld"))).encode()).digest()
    return float(int.from_bytes(digest[8:16], "big") / 2**64)


def _why_over(result: StepResult) -> str:
    reason = result.stop_reason.value if result.stop_reason is not None else "the environment refused the answer"
    return f"the episode ended as {reason}" + (f": {result.failure}" if result.failure else "")
