"""What an episode does, by documented rules, and why a wrong one is wrong.

Every detector is a rule over what the episode recorded: no model judges, so the same episode always gets the same
names. How often the rules agree with a reader is measured on labelled episodes (docs/BEHAVIOURS.md). They read
`Question.hops` and `supporting_ids` where a data set has them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from seekling.env.programs import NOT_PYTHON
from seekling.evaluate.code_habits import is_misuse, program_habits, provided_names
from seekling.evaluate.evidence import (
    Need,
    executed_queries,
    fold,
    has_nothing_to_find,
    holds,
    is_abstention,
    is_fact_shown,
    is_grounded,
    is_output,
    is_retrieved,
    listed_in,
    needs_of,
    shown_in,
)
from seekling.reward.match import longest_common_subsequence, normalize_answer
from seekling.types import Episode, Question, StopReason, Turn

ECHO_WORDS = 8
"""So many words in a row of the instructions are no coincidence."""
PHRASE_WORDS = 4
PHRASE_TIMES = 4
"""A phrase of so many words, so many times in one turn, is repetition."""
WORD_TIMES = 5
"""So is one word so many times in a row."""
PARROT_SHARE = 0.8
"""A query that holds this share of the question's words, in their order, is the question again."""
PARROT_SHARE_ASKED = 0.5
"""The same for a query that begins with a question word: keywords do not."""
SUBJECT_SHARE = 0.5
"""A query is about a subject when it holds at least this share of its words."""
PROGRAM_BEHAVIOURS = frozenset({"loop", "helper_function", "programmatic_extraction", "silent_execution"})
"""Only programs show these."""

BEHAVIOURS: Mapping[str, str] = MappingProxyType(
    {
        "keyword_query": "A query names the subject of the question, adds words of what is asked, and is not the "
        "question itself.",
        "parroted_query": "A query is the question again: at least 80 % of its words in their order, or half of them "
        "after a question word.",
        "iteration": "Two or more different queries ran, or the text of two or more pages or sections was read.",
        "reformulation": "A query about the same subject as an earlier one runs with other words.",
        "loop": "A program loops: for, while or a comprehension.",
        "helper_function": "A program defines a function of its own.",
        "programmatic_extraction": "A program cuts what matters out of a page's text: it filters lines, searches, "
        "splits or slices at a computed place.",
        "grounded_answer": "The answer stands word for word in an observation.",
        "answer_from_memory": "Something is stated as the answer, and nothing was ever retrieved.",
        "abstention": "The answer says that it is not known.",
        "hallucination": "After searching, the answer stands in no observation, and the fact that was asked for was "
        "never shown.",
        "failed_search": "A search or program that should retrieve brought nothing that was needed: an error, no "
        "output, no page, or other pages.",
        "recovery": "After a failed search, a later one shows a needed page or fact for the first time.",
        "interface_misuse": "A provided function is redefined, called by a wrong name or with wrong arguments or ids, "
        "or its result is read as what it is not.",
        "silent_execution": "A program ran without an error and printed nothing.",
        "prompt_echo": "The model writes eight or more words in a row of its own instructions.",
        "format_break": "A turn could not be read as an action, or it left a tag open.",
        "repetition": "The same action is taken again, or one phrase is written over and over within a turn.",
    }
)
"""Name of every behaviour -> its rule in a sentence, in the order in which they are shown."""

ERROR_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "not_retrieved": "A page that holds the answer never came back.",
        "not_read": "The pages came back, but no observation shows the answer.",
        "misread": "What tells the answer was shown, or no page tells it, and something else was answered.",
        "no_answer": "The episode ended without an answer.",
        "infrastructure": "The search server, the sandbox or the engine failed: not the policy's error.",
    }
)
"""Name of every cause of an error -> what it means, in the order of an episode's way to its answer."""

_ASKING = frozenset(("what", "which", "who", "whom", "whose", "where", "when", "why", "how"))
_FUNCTION_WORDS = frozenset(
    ["in", "to", "for", "from", "by", "on", "as", "at", "of", "did", "does", "do", "is", "was", "were"]
)
_JOINING = frozenset(("and", "or"))
_CAPITALISED = re.compile(r"\b[^\W\d_a-z]\w+")
_OWN_TAGS = ("think", "tool_response", "information")
"""Of thoughts and of observations, which none but the environment may write."""
_TAG = re.compile(r"</?\w+>")
_ANSWER_FORM = re.compile(r"(<answer>|^\s*answer:)\s*\w", re.IGNORECASE | re.MULTILINE)
_ANSWER_LEAD = re.compile(r"^(question|premise|answer|the answer is)\b:?\s*", re.IGNORECASE)
_RETRIEVAL = re.compile(
    r"\b(search\w*|view_sections|read_section)\s*\(|^[ \t]*(import|from) (wiki|tools|search)", re.MULTILINE
)


def detect_behaviours(question: Question, episode: Episode) -> tuple[str, ...]:
    """The sorted names of `BEHAVIOURS` that an episode shows, also one that ended in a failure."""
    rules = (_query_habits, _answer_habits, _search_outcomes, _form_habits)
    found = {name for rule in rules for name in rule(question, episode)}
    return tuple(sorted(found.union(program_habits(episode))))


def repeats_itself(episode: Episode) -> bool:
    """Whether an episode shows `repetition`: the same action again, or one phrase over and over within a turn."""
    acts = {(turn.kind, " ".join((turn.payload or turn.action).lower().split())) for turn in episode.turns}
    return len(acts) < len(episode.turns) or any(map(_is_repetitive, episode.turns))


def error_cause(question: Question, episode: Episode, em: float) -> str:
    """Why an episode is not right: the first of `ERROR_CAUSES` that holds on its way to an answer; empty when it is.

    `em` is its exact match, 1 is right; it is not read after an infrastructure failure, which has no score.
    """
    if episode.stop_reason is StopReason.INFRA_FAILURE:
        return "infrastructure"
    if em >= 1:
        return ""
    if episode.answer is None:
        return "no_answer"
    if is_fact_shown(question, episode) or has_nothing_to_find(question):
        return "misread"
    return "not_read" if is_retrieved(question, episode) else "not_retrieved"


def _query_habits(question: Question, episode: Episode) -> Iterator[str]:
    needs = needs_of(question)
    for _, query in executed_queries(episode):
        if _is_parroted(query, question):
            yield "parroted_query"
        elif _is_keyword_query(query, question, needs):
            yield "keyword_query"
    ran = [query for _, query in executed_queries(episode, with_failed=False)]
    calls = [call for turn in episode.turns for call in turn.calls if call.name == "read_section" and not call.error]
    num_read = len({str(call.arguments.get("section_id")) for call in calls})
    if len({fold(query) for query in ran}) > 1 or num_read > 1:
        yield "iteration"
    if any(_is_reformulation(first, second, needs) for first, second in itertools.combinations(ran, 2)):
        yield "reformulation"


def _is_parroted(query: str, question: Question) -> bool:
    """Whether a query is the question again."""
    asked, words = fold(question.question).split(), fold(query).split()
    if len(words) < 2:
        return False
    share = longest_common_subsequence(asked, words) / max(1, len(asked))
    return share >= PARROT_SHARE or (share >= PARROT_SHARE_ASKED and bool(_ASKING & set(words[:2])))


def _need_named_in(query: str, needs: Sequence[Need]) -> Need | None:
    """The need whose subject a query names most of; None when it names none."""
    words = set(fold(query).split())

    def common(need: Need) -> int:
        subject = set(fold(need.subject).split())
        held = len(subject & words)
        return held if subject and held >= SUBJECT_SHARE * len(subject) else 0

    best = max(needs, key=common)
    return best if common(best) else None


def _is_keyword_query(query: str, question: Question, needs: Sequence[Need]) -> bool:
    words = set(fold(query).split())
    subjects = [set(fold(need.subject).split()) for need in needs if need.subject]
    if subjects:
        asked_for = words - _JOINING - set().union(*subjects)  # two subjects side by side ask for nothing
        return any(subject <= words for subject in subjects) and bool(asked_for)
    # Where the subject is unknown: words of the question, no word that only a question has, and not only names.
    names = {fold(name) for name in _CAPITALISED.findall(question.question.partition(" ")[2])}
    asked = set(fold(question.question).split()) - _ASKING - _FUNCTION_WORDS
    return bool(asked & words) and bool(words - names - _FUNCTION_WORDS) and len(words) > 1 and not _ASKING & words


def _is_reformulation(first: str, second: str, needs: Sequence[Need]) -> bool:
    """Whether two queries look for the same subject in other words."""
    before, after = fold(first).split(), fold(second).split()
    if before == after:
        return False
    subjects = _need_named_in(first, needs), _need_named_in(second, needs)
    if all(subjects):
        return subjects[0] is subjects[1]
    names = set(_CAPITALISED.findall(first)), set(_CAPITALISED.findall(second))
    both_name_new = bool(names[0] - names[1]) and bool(names[1] - names[0])
    common = len(set(before) & set(after))
    return not both_name_new and common >= SUBJECT_SHARE * min(len(set(before)), len(set(after)))


def _answer_habits(question: Question, episode: Episode) -> Iterator[str]:
    has_searched = any(_is_attempt(turn) and NOT_PYTHON not in turn.observation for turn in episode.turns)
    answer = episode.answer
    if answer is None:
        if not has_searched and any(_states_something(turn, question, episode) for turn in episode.turns):
            yield "answer_from_memory"
        return
    if is_abstention(answer):
        yield "abstention"
    elif not has_searched:
        yield "answer_from_memory"
    elif is_grounded(episode, answer):
        yield "grounded_answer"
    elif _is_claim(question, answer) and not _has_shown_answer(question, episode):
        yield "hallucination"


def _search_outcomes(question: Question, episode: Episode) -> Iterator[str]:
    """Failed searches, and whether what they were for was found later."""
    needs = needs_of(question)
    came = {need: next((i for i in range(len(episode.turns)) if _brought(episode, i, need)), None) for need in needs}
    for number, turn in enumerate(episode.turns):
        if not _is_attempt(turn) or not turn.observation:
            continue
        target = _need_named_in(" ".join(str(call.arguments.get("query", "")) for call in turn.calls), needs)
        # A fact that was known before is shown again by many pages; only for its own query is that a success.
        if any(_brought(episode, number, need) for need in needs if target in (None, need) or came[need] == number):
            continue
        yield "failed_search"
        wanted = [came[need] for need in needs if target is None or need is target]
        if any(place is not None and place > number for place in wanted):
            yield "recovery"


def _form_habits(question: Question, episode: Episode) -> Iterator[str]:
    instructions = _instructions(question, episode)
    provided = provided_names(episode)
    if repeats_itself(episode):
        yield "repetition"
    for turn in episode.turns:
        if is_misuse(turn, provided):
            yield "interface_misuse"
        if _echoed(turn.action, instructions):
            yield "prompt_echo"
        if turn.kind == "invalid" or any(turn.action.count(f"<{t}>") > turn.action.count(f"</{t}>") for t in _OWN_TAGS):
            yield "format_break"


def _is_attempt(turn: Turn) -> bool:
    """Whether a turn tried to retrieve something and was executed."""
    if turn.kind in ("search", "call"):
        return bool(turn.calls or turn.observation)
    return turn.kind == "code" and (bool(turn.calls) or _RETRIEVAL.search(turn.payload) is not None)


def _brought(episode: Episode, number: int, need: Need) -> bool:
    """Whether a turn showed a needed fact, or a needed page where pages are listed; an error spoils a listing only."""
    turn = episode.turns[number]
    return shown_in(episode, number, need) or (is_output(turn) and listed_in(turn, need))


def _has_shown_answer(question: Question, episode: Episode) -> bool:
    """Whether the answer itself was shown. Of an unanswerable question there is none to show."""
    return bool(needs_of(question)[-1].answers) and is_fact_shown(question, episode)


def _is_claim(question: Question, answer: str) -> bool:
    """Whether an answer says something that can be made up: not yes or no, and not the question again."""
    words = normalize_answer(answer)
    if words in ("yes", "no"):
        return False
    asked = fold(question.question)
    is_question_again = len(words.split()) > PHRASE_WORDS and set(words.split()) <= set(asked.split())
    return not is_question_again or question.is_side_by_side


def _states_something(turn: Turn, question: Question, episode: Episode) -> bool:
    """Whether an unreadable turn states an answer in prose: a sentence about the question that is not only its words.

    What it copied from the instructions and the question itself are no statements.
    """
    if turn.kind != "invalid":
        return False
    instructions = _instructions(question, episode)
    asked = fold(question.question)
    for sentence in re.split(r"[\n.]", turn.action):
        text = _ANSWER_LEAD.sub("", _TAG.sub(" ", sentence).strip())
        words = fold(text).split()
        is_copied = holds(instructions, " ".join(words[:ECHO_WORDS])) or holds(asked, " ".join(words))
        if text.endswith("?") or not words or is_copied:
            continue
        is_about_it = len(words) >= PHRASE_WORDS and bool(set(words) & set(asked.split()))
        if is_about_it or _ANSWER_FORM.search(sentence):
            return True
    return False


def _instructions(question: Question, episode: Episode) -> str:
    """The folded text that tells the policy what to do: the prompt without the question, and complaints."""
    texts = [message.content.replace(question.question.strip(), " ") for message in episode.prompt]
    texts += [turn.observation for turn in episode.turns if turn.kind == "invalid"]
    return " | ".join(fold(text) for text in texts)


def _echoed(action: str, instructions: str) -> bool:
    words = fold(_TAG.sub(" ", action)).split()
    return any(holds(instructions, " ".join(phrase)) for phrase in _phrases(words, ECHO_WORDS))


def _phrases(words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[place : place + length]) for place in range(len(words) - length + 1))


def _is_repetitive(turn: Turn) -> bool:
    """Whether one phrase, or in a program one long line, is written over and over."""
    if turn.kind == "code":
        lines = Counter(line.strip() for line in turn.payload.splitlines() if len(line.split()) >= PHRASE_WORDS)
        return any(times >= PHRASE_TIMES for times in lines.values())
    words = fold(turn.action).split()
    if any(len(list(run)) >= WORD_TIMES for _, run in itertools.groupby(words)):
        return True
    return any(times >= PHRASE_TIMES for times in Counter(_phrases(words, PHRASE_WORDS)).values())
