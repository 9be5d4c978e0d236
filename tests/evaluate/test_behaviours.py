"""Detectors on small episodes; each test is one rule, or one way in which it must not be fooled."""

import dataclasses

import pytest

from seekling.env.protocol.code import NOTHING_PRINTED
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES, detect_behaviours, error_cause
from seekling.types import Episode, Hop, Message, Question, StopReason, ToolCall, Turn

PROMPT = (
    Message("user", "Answer the question by searching. Write one tag, its text, and the closing tag.\nQuestion: "),
)
FOKU, RIVER = Hop("Foku", "year founded", "193", "p1"), Hop("Foku", "river", "Sava", "p2")
SINGLE = Question("q", "In which year was Foku founded?", ("193",), ("p1",), "single", hops=(FOKU,))
BRIDGE = Question(
    "q", "Which river flows through the birthplace of Ana Lund?", ("Sava",), ("p1", "p2"), "bridge",
    hops=(Hop("Ana Lund", "place born", "Foku", "p1"), RIVER),
)  # fmt: skip
COMPARISON = Question(
    "q", "Which is higher, Mount A or Mount B?", ("Mount B",), ("p1", "p2"), "comparison",
    hops=(Hop("Mount A", "height", "900 metres", "p1"), Hop("Mount B", "height", "1,200 metres", "p2")),
)  # fmt: skip
UNANSWERABLE = Question(
    "q", "What did Ana Lund collect?", ("unknown",), (), "unanswerable",
    hops=(Hop("Ana Lund", "collection", "unknown", "p1"),),
)  # fmt: skip
PLAIN = Question("q", "Where was Marie Curie born?", ("Warsaw",))


def search(query, observation="", *documents, error=""):
    call = ToolCall("search", {"query": query}, observation, error, documents)
    return Turn(f"<search> {query} </search>", "search", query, observation or "No results.", (call,))


def program(code, observation, *calls):
    return Turn(f"```python\n{code}\n```\n", "code", code, observation, calls)


def call(name, argument, *documents, error=""):
    key = {"search_pages": "query", "view_sections": "page_id", "read_section": "section_id"}[name]
    return ToolCall(name, {key: argument}, "", error, documents)


def invalid(text):
    return Turn(text, "invalid", observation="That was not valid.")


def episode(*turns, answer=None, protocol="tags", stop=None):
    stop = stop or (StopReason.MAX_TURNS if answer is None else StopReason.ANSWERED)
    if answer is not None:
        turns = (*turns, Turn(f"<answer> {answer} </answer>", "answer", answer))
    return Episode("q", "", protocol, PROMPT, turns, answer, stop)


def found(question, *turns, **settings):
    return set(detect_behaviours(question, episode(*turns, **settings)))


def test_every_name_is_documented_and_the_result_is_sorted():
    turns = [search("Foku founded", "Foku was founded in 193.", "p1")] * 2
    names = detect_behaviours(SINGLE, episode(*turns, answer="193"))
    assert names == ("grounded_answer", "keyword_query", "repetition")
    assert set(names) < set(BEHAVIOURS)
    assert all(rule.endswith(".") for rule in (*BEHAVIOURS.values(), *ERROR_CAUSES.values()))


TRACE = 'Error:\nTraceback (most recent call last):\n  File "<program 1>", line 1\n    x = f(193)\nTypeError: f'
LISTED = program("...", "Output:\n[{'page_id': 'p1', 'title': 'Foku'}]", call("search_pages", "Foku", "p1", "p2"))
OTHERS = program("...", "Output:\n[{'page_id': 'p8'}]", call("search_pages", "Foku", "p8"))
FOUND = search("Foku founded", "Foku was founded in 193.", "p1")
OPEN = dataclasses.replace(search("Foku", "193", "p1"), action="<think> hm <search> Foku </search>")
NAME = "Order of the Lantern of Gellilyr"
LONG_NAME = f"<think> {NAME}: 715. I look up {NAME}. </think>\n<search> {NAME} seat </search>"
CODE = {"protocol": "code"}
RULES = {
    # query habits
    "subject and keyword": (SINGLE, [search("Foku founded", "x", "p9")], {}, "keyword_query -parroted_query"),
    "the question": (SINGLE, [search("in which year was foku founded", "x")], {}, "parroted_query -keyword_query"),
    "half of it, asked": (SINGLE, [search("when was Foku founded", "x")], {}, "parroted_query -keyword_query"),
    "the subject alone": (SINGLE, [search("Foku", "x")], {}, "-parroted_query -keyword_query"),
    "keywords alone": (SINGLE, [search("founded year town", "x")], {}, "-parroted_query -keyword_query"),
    "an asking word": (SINGLE, [search("which foku history", "x")], {}, "keyword_query -parroted_query"),
    "another order": (
        dataclasses.replace(SINGLE, question="Which river flows through Foku?"),
        [search("Foku river flows through", "x")], {}, "-parroted_query",
    ),
    "no hops": (PLAIN, [search("Marie Curie birthplace", "x")], {}, "keyword_query"),
    "no hops, names only": (PLAIN, [search("Marie Curie", "x")], {}, "-keyword_query"),
    "no hops, other words": (PLAIN, [search("Paris weather", "x")], {}, "-keyword_query"),
    "two subjects ask for nothing": (COMPARISON, [search("Mount A and Mount B", "x")], {}, "-keyword_query"),
    "two subjects and a fact": (COMPARISON, [search("Mount A and Mount B height", "x")], {}, "keyword_query"),
    "the next hop": (
        BRIDGE, [search("Ana Lund born", "In Foku.", "p1"), search("Foku river", "On the Sava.", "p2")], {},
        "iteration -reformulation",
    ),
    "the same subject in other words": (
        BRIDGE, [search("Ana Lund born", "-", "p9"), search("Ana Lund birthplace", "In Foku.", "p1")], {},
        "iteration reformulation failed_search recovery",
    ),
    "a query that failed to run": (
        SINGLE, [search("Foku founded", error="wrong arguments"), search("Foku year", "193", "p1")], {},
        "interface_misuse -iteration",
    ),
    # answers
    "a whole word": (SINGLE, [search("Foku", "founded in [193](p7).", "p1")], {"answer": "193"}, "grounded_answer"),
    "part of a word": (SINGLE, [search("Foku", "founded in 1938.", "p1")], {"answer": "193"}, "-grounded_answer"),
    "printed, no page": (SINGLE, [program('print("193")', "Output:\n193")], {"answer": "193"}, "-grounded_answer"),
    "its own query echoed": (
        SINGLE,
        [dataclasses.replace(search("river 193", "Query: river 193\nDocument 1: No date.", "p1"), kind="call")],
        {"answer": "193", "protocol": "tools"}, "-grounded_answer",
    ),
    "its own line in a traceback": (
        SINGLE, [program("x = f(193)", f"Output:\nNo date.\n{TRACE}", call("read_section", "p1:full", "p1"))],
        {"answer": "193", **CODE}, "-grounded_answer",
    ),
    "no search at all": (SINGLE, [], {"answer": "1856"}, "answer_from_memory"),
    "stated unreadably": (SINGLE, [invalid("Foku was founded in 1856.")], {}, "answer_from_memory format_break"),
    "made up after a search": (
        SINGLE, [search("Foku founded", "No date here.", "p1")], {"answer": "1856"},
        "hallucination -answer_from_memory",
    ),
    "wrong beside the right one": (SINGLE, [FOUND], {"answer": "1856"}, "-hallucination"),
    "yes cannot be made up": (SINGLE, [search("Foku", "-", "p1")], {"answer": "Yes"}, "-hallucination"),
    # searches that fail
    "a known fact is no success": (
        BRIDGE, [search("Ana Lund born", "In Foku.", "p1"), search("Foku river", "Foku is a town.", "p2")], {},
        "failed_search -recovery",
    ),
    "the needed page is listed": (SINGLE, [LISTED], CODE, "-failed_search"),
    "other pages are listed first": (SINGLE, [OTHERS, LISTED], CODE, "failed_search recovery"),
    "only the page is needed": (UNANSWERABLE, [search("Ana Lund", "A poet.", "p1")], {}, "-failed_search"),
    "another page": (UNANSWERABLE, [search("Ana Lund", "Another.", "p9")], {}, "failed_search"),
    # programs
    "nothing printed": (SINGLE, [program("x = 1", NOTHING_PRINTED)], CODE, "silent_execution"),
    "an error is not silent": (SINGLE, [program("x", "Error:\nNameError: name 'x'")], CODE, "-silent_execution"),
    "a refused search": (
        SINGLE, [program("print(search_pages('x'))", "Error:\nToolError: No searches are left: all 2 are used.")], CODE,
        "-interface_misuse",
    ),
    # form
    "eight words of the instructions": (
        SINGLE, [invalid("Write one tag, its text, and the closing tag.")], {}, "prompt_echo",
    ),
    "three words of them": (SINGLE, [invalid("Write one tag.")], {}, "-prompt_echo"),
    "a thought left open": (SINGLE, [OPEN], {}, "format_break"),
    "an observation of its own": (
        SINGLE, [dataclasses.replace(OPEN, action="<tool_response> <search> Foku </search>")], {}, "format_break",
    ),
    "opened in the prompt": (
        SINGLE, [dataclasses.replace(OPEN, action="hm </think> <search> Foku </search>")], {}, "-format_break",
    ),
    "a long name thrice": (SINGLE, [dataclasses.replace(search("x", "y"), action=LONG_NAME)], {}, "-repetition"),
    "a phrase over and over": (SINGLE, [invalid("it is in the hills and " * 5)], {}, "repetition"),
    "the same action again": (SINGLE, [search("Foku", "y"), search("  foku ", "y")], {}, "repetition"),
    "one word five times": (SINGLE, [search("Foku museum museum museum museum museum", "y")], {}, "repetition"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_an_episode_shows_what_the_rules_say_and_not_what_only_looks_like_it(rule):
    question, turns, settings, expected = RULES[rule]
    names = found(question, *turns, **settings)
    for name in expected.split():
        assert (name.lstrip("-") in names) != name.startswith("-"), name
    assert {name.lstrip("-") for name in expected.split()} <= set(BEHAVIOURS)


@pytest.mark.parametrize(
    "answer", ["unknown", "Not stated.", "I don't know", "The pages do not say", "I could not find it"]
)
def test_an_abstention_is_neither_grounded_nor_made_up(answer):
    names = found(UNANSWERABLE, search("Ana Lund collection", "She is unknown.", "p1"), answer=answer)
    assert names == {"abstention", "keyword_query"}


@pytest.mark.parametrize("answer", ["The Unknown Soldier", "Known", "Nota Stated"])
def test_an_answer_that_holds_such_a_word_is_no_abstention(answer):
    assert "abstention" not in found(SINGLE, answer=answer)


def test_programs_show_loops_helpers_and_extraction():
    code = (
        "def cut(text, word):\n    place = text.find(word)\n    return text[place - 9:place + 9]\n"
        "for page in search_pages('Foku'):\n    print(cut(read_section(page['page_id'] + ':full'), 'founded'))"
    )
    names = found(SINGLE, program(code, "Output:\n193", call("read_section", "p1:full", "p1")), protocol="code")
    assert {"loop", "helper_function", "programmatic_extraction"} <= names


@pytest.mark.parametrize(
    ("code", "observation", "is_misuse"),
    [
        ("def search_pages(q):\n    return []", "Output:\n[]", True),
        ("from tools import read_section", "Error:\nModuleNotFoundError: No module named 'tools'", True),
        ("print(search('x'))", "Error:\nNameError: name 'search' is not defined", True),
        ("print(pagess[0])", "Error:\nNameError: name 'pagess' is not defined", False),
        ("print(search_pages('x')[0]['text'])", "Error:\nKeyError: 'text'", True),
        (
            "read_section('p1:full').split('. ').split('. ')",
            "Error:\nAttributeError: 'list' object has no attribute 'split'",
            False,
        ),
        ("search_pages('x').split()", "Error:\nAttributeError: 'list' object has no attribute 'split'", True),
        ("int('a')", "Error:\nValueError: invalid literal for int() with base 10: 'a'", False),
        ("print((1)", "Error:\nSyntaxError: '(' was never closed", False),
    ],
)
def test_misuse_is_a_wrong_idea_of_what_is_provided_and_not_any_bug(code, observation, is_misuse):
    names = found(SINGLE, program(code, observation), protocol="code")
    assert ("interface_misuse" in names) == is_misuse


def test_every_wrong_answer_has_one_cause_and_a_right_one_has_none():
    read = search("Foku", "founded in 193", "p1")
    assert error_cause(SINGLE, episode(read, answer="193"), 1.0) == ""
    assert error_cause(SINGLE, episode(read, answer="774"), 0.0) == "misread"
    assert error_cause(SINGLE, episode(search("Foku", "no year", "p1"), answer="774"), 0.0) == "not_read"
    assert error_cause(SINGLE, episode(search("Foku", "193", "p9"), answer="774"), 0.0) == "not_retrieved"
    assert error_cause(SINGLE, episode(read), 0.0) == "no_answer"
    assert error_cause(SINGLE, episode(read, stop=StopReason.INFRA_FAILURE), 0.0) == "infrastructure"


def test_hostile_text_of_a_megabyte_is_named_and_not_hung_on():
    for text in ("[" * 10**6, "[](" * 10**5, "\n" * 10**6, "<think>" * 30_000, "search " * 30_000):
        assert "format_break" in found(SINGLE, invalid(text))
        found(SINGLE, program(text, "Error:\n" + text), answer=text, protocol="code")
