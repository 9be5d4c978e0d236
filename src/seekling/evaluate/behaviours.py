"""What an episode does, by documented rules, and why a wrong one is wrong.

Every detector is a rule over what the episode recorded: no model judges, so the same episode always gets the same
names. How often the rules agree with a person who read the episodes is measured on labelled episodes; see
docs/BEHAVIOURS.md. The rules read `Question.hops` and `supporting_ids` where a data set has them and say what they do
without.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seekling.types import Episode, Question

BEHAVIOURS: Mapping[str, str] = MappingProxyType(
    {
        "keyword_query": "A query names the subject of the question, adds words of what is asked, and is not the "
        "question itself.",
        "parroted_query": "A query is the question again: it holds at least 80 % of the question's words.",
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
        "misread": "An observation shows the answer, and another one was given.",
        "no_answer": "The episode ended without an answer.",
        "infrastructure": "The search server, the sandbox or the engine failed: not the policy's error.",
    }
)
"""Name of every cause of an error -> what it means, in the order of an episode's way to its answer."""


def detect_behaviours(question: Question, episode: Episode) -> tuple[str, ...]:
    """The names of `BEHAVIOURS` that an episode shows.

    Args:
        question: which the episode answers; its hops and supporting pages are used where they are known.
        episode: any, also one that ended in a failure.

    Returns:
        Sorted names, each once.
    """
    return ()


def error_cause(question: Question, episode: Episode, em: float) -> str:
    """Why an episode is not right: the first cause that holds on its way to an answer.

    Args:
        question: which the episode answers.
        episode: any.
        em: its exact match; 1 is right. Not read after an infrastructure failure, which has no score.

    Returns:
        A name of `ERROR_CAUSES`; empty when the episode is right.
    """
    return ""
