"""Detectors on small episodes; each test is one rule, or one way in which it must not be fooled."""

import dataclasses

import pytest

from seekling.env.programs import NOT_PYTHON
from seekling.env.protocol.code import NOTHING_PRINTED
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES, detect_behaviours, error_cause
from seekling.types import Episode, Hop, Message, Question, StopReason, ToolCall, Turn

PROMPT = (
    Message("user", "Answer the question by searching. Write one tag, its text, and the closing tag.\nQuestion: "),
)
SINGLE = Question(
    "q",
    "In which year was Foku founded?",
    ("193",),
    ("p1",),
    "single",
    hops=(Hop("Foku", "year founded", "193", "p1"),),
)
BRIDGE = Question(
    "q",
    "Which river flows through the birthplace of Ana Lund?",
    ("Sava",),
    ("p1", "p2"),
    "bridge",
    hops=(Hop("Ana Lund", "place born", "Foku", "p1"), Hop("Foku", "river", "Sava", "p2")),
)
COMPARISON = Question(
    "q",
    "Which is higher, Mount A or Mount B?",
    ("Mount B",),
    ("p1", "p2"),
    "comparison",
    hops=(Hop("Mount A", "height", "900 metres", "p1"), Hop("Mount B", "height", "1,200 metres", "p2")),
)
UNANSWERABLE = Question(
    "q",
    "What did Ana Lund collect?",
    ("unknown",),
    (),
    "unanswerable",
    hops=(Hop("Ana Lund", "collection", "unknown", "p1"),),
)


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


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Foku founded", "keyword_query"),
        ("in which year was foku founded", "parroted_query"),
        ("when was Foku founded", "parroted_query"),
        ("Foku", None),  # the subject alone
        ("founded year town", None),  # keywords alone
        ("which foku history", "keyword_query"),
    ],
)
def test_a_query_is_keywords_or_the_question_again_or_neither(query, name):
    names = found(SINGLE, search(query, "x", "p9"))
    assert names & {"keyword_query", "parroted_query"} == ({name} if name else set())


def test_words_in_another_order_are_not_the_question_again():
    question = dataclasses.replace(SINGLE, question="Which river flows through Foku?")
    assert "parroted_query" not in found(question, search("Foku river flows through", "x"))


def test_keywords_of_a_question_without_hops_are_more_than_its_names():
    plain = Question("q", "Where was Marie Curie born?", ("Warsaw",))
    assert "keyword_query" in found(plain, search("Marie Curie birthplace", "x"))
    assert "keyword_query" not in found(plain, search("Marie Curie", "x"))
    assert "keyword_query" not in found(plain, search("Paris weather", "x"))


def test_two_subjects_side_by_side_are_no_keywords():
    assert "keyword_query" not in found(COMPARISON, search("Mount A and Mount B", "x"))
    assert "keyword_query" in found(COMPARISON, search("Mount A and Mount B height", "x"))


def test_the_next_hop_is_iteration_and_not_reformulation():
    names = found(BRIDGE, search("Ana Lund born", "In Foku.", "p1"), search("Foku river", "On the Sava.", "p2"))
    assert "iteration" in names
    assert "reformulation" not in names
    again = found(BRIDGE, search("Ana Lund born", "-", "p9"), search("Ana Lund birthplace", "In Foku.", "p1"))
    assert {"iteration", "reformulation", "failed_search", "recovery"} <= again


def test_a_query_that_failed_to_run_is_no_iteration():
    names = found(SINGLE, search("Foku founded", error="wrong arguments"), search("Foku year", "193", "p1"))
    assert "iteration" not in names
    assert "interface_misuse" in names


def test_an_answer_is_grounded_by_a_whole_word_of_a_page_that_came_back():
    assert "grounded_answer" in found(SINGLE, search("Foku", "founded in [193](p7).", "p1"), answer="193")
    assert "grounded_answer" not in found(SINGLE, search("Foku", "founded in 1938.", "p1"), answer="193")
    printed = program('print("193")', "Output:\n193")
    assert "grounded_answer" not in found(SINGLE, printed, answer="193", protocol="code")


def test_what_the_policy_wrote_itself_is_no_evidence_when_it_comes_back():
    echo = dataclasses.replace(search("river 193", "Query: river 193\nDocument 1: No date.", "p1"), kind="call")
    assert "grounded_answer" not in found(SINGLE, echo, answer="193", protocol="tools")
    trace = 'Error:\nTraceback (most recent call last):\n  File "<program 1>", line 1\n    x = f(193)\nTypeError: f'
    failed = program("x = f(193)", f"Output:\nNo date.\n{trace}", call("read_section", "p1:full", "p1"))
    assert "grounded_answer" not in found(SINGLE, failed, answer="193", protocol="code")


def test_a_program_that_is_no_python_has_searched_nothing():
    broken = program("search_pages('Foku)", f"Error:\nSyntaxError: unterminated string literal\n{NOT_PYTHON}")
    assert found(SINGLE, broken, answer="1856", protocol="code") == {"answer_from_memory", "failed_search"}


def test_memory_is_an_answer_without_a_search_and_hallucination_one_after_it():
    assert found(SINGLE, answer="1856") == {"answer_from_memory"}
    assert found(SINGLE, invalid("Foku was founded in 1856."), answer=None) == {"answer_from_memory", "format_break"}
    after = found(SINGLE, search("Foku founded", "No date here.", "p1"), answer="1856")
    assert "hallucination" in after
    assert "answer_from_memory" not in after


def test_a_wrong_answer_beside_the_right_one_is_no_hallucination():
    names = found(SINGLE, search("Foku founded", "Foku was founded in 193.", "p1"), answer="1856")
    assert "hallucination" not in names


@pytest.mark.parametrize(
    "answer", ["unknown", "Not stated.", "I don't know", "The pages do not say", "I could not find it"]
)
def test_an_abstention_is_neither_grounded_nor_made_up(answer):
    names = found(UNANSWERABLE, search("Ana Lund collection", "She is unknown.", "p1"), answer=answer)
    assert names == {"abstention", "keyword_query"}


@pytest.mark.parametrize("answer", ["The Unknown Soldier", "Known", "Nota Stated"])
def test_an_answer_that_holds_such_a_word_is_no_abstention(answer):
    assert "abstention" not in found(SINGLE, answer=answer)


def test_yes_and_no_cannot_be_made_up():
    assert "hallucination" not in found(SINGLE, search("Foku", "-", "p1"), answer="Yes")


def test_a_fact_that_was_known_before_does_not_make_the_next_search_a_success():
    names = found(BRIDGE, search("Ana Lund born", "In Foku.", "p1"), search("Foku river", "Foku is a town.", "p2"))
    assert "failed_search" in names
    assert "recovery" not in names


def test_listing_the_needed_page_is_no_failure_but_other_pages_are():
    listed = program("...", "Output:\n[{'page_id': 'p1', 'title': 'Foku'}]", call("search_pages", "Foku", "p1", "p2"))
    others = program("...", "Output:\n[{'page_id': 'p8'}]", call("search_pages", "Foku", "p8"))
    assert "failed_search" not in found(SINGLE, listed, protocol="code")
    assert {"failed_search", "recovery"} <= found(SINGLE, others, listed, protocol="code")


def test_of_an_unanswerable_question_only_the_page_is_needed():
    assert "failed_search" not in found(UNANSWERABLE, search("Ana Lund", "A poet.", "p1"))
    assert "failed_search" in found(UNANSWERABLE, search("Ana Lund", "Another.", "p9"))


def test_programs_show_loops_helpers_and_extraction():
    code = (
        "def cut(text, word):\n    place = text.find(word)\n    return text[place - 9:place + 9]\n"
        "for page in search_pages('Foku'):\n    print(cut(read_section(page['page_id'] + ':full'), 'founded'))"
    )
    names = found(SINGLE, program(code, "Output:\n193", call("read_section", "p1:full", "p1")), protocol="code")
    assert {"loop", "helper_function", "programmatic_extraction"} <= names


@pytest.mark.parametrize(
    "code",
    [
        "print(read_section('p1:full')[:900])",
        "print(search_pages('x')[0]['title'].split())",
        "page = search_pages('x')[0]\nprint(read_section(page['page_id']).split('. '))",  # never came to reading
    ],
)
def test_a_beginning_or_a_title_is_not_extraction(code):
    assert "programmatic_extraction" not in found(SINGLE, program(code, "Output:\nx"), protocol="code")


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


def test_a_refused_search_is_no_misuse():
    turn = program("print(search_pages('x'))", "Error:\nToolError: No searches are left: all 2 are used. Answer.")
    assert "interface_misuse" not in found(SINGLE, turn, protocol="code")


def test_a_program_without_output_is_silent_and_an_error_is_not():
    assert "silent_execution" in found(SINGLE, program("x = 1", NOTHING_PRINTED), protocol="code")
    assert "silent_execution" not in found(SINGLE, program("x", "Error:\nNameError: name 'x'"), protocol="code")


def test_eight_words_of_the_instructions_are_an_echo_and_the_question_is_none():
    assert "prompt_echo" in found(SINGLE, invalid("Write one tag, its text, and the closing tag."))
    assert "prompt_echo" not in found(SINGLE, invalid("Write one tag."))
    asked = dataclasses.replace(SINGLE, question="In which long gone and nearly forgotten year was Foku founded?")
    prompt = (Message("user", f"Answer.\nQuestion: {asked.question}"),)
    repeated = dataclasses.replace(episode(invalid(asked.question)), prompt=prompt)
    assert "prompt_echo" not in detect_behaviours(asked, repeated)


def test_a_thought_left_open_breaks_the_format_even_when_the_action_runs():
    turn = dataclasses.replace(search("Foku", "193", "p1"), action="<think> hm <search> Foku </search>")
    assert "format_break" in found(SINGLE, turn)
    observing = dataclasses.replace(turn, action="<tool_response> <search> Foku </search>")
    assert "format_break" in found(SINGLE, observing)
    opened_in_the_prompt = dataclasses.replace(turn, action="hm </think> <search> Foku </search>")
    assert "format_break" not in found(SINGLE, opened_in_the_prompt)


def test_repetition_is_the_same_action_or_a_phrase_over_and_over_but_not_a_long_name():
    name = "Order of the Lantern of Gellilyr"
    thought = f"<think> {name}: 715. I look up {name}. </think>\n<search> {name} seat </search>"
    assert "repetition" not in found(SINGLE, dataclasses.replace(search("x", "y"), action=thought))
    assert "repetition" in found(SINGLE, invalid("it is in the hills and " * 5))
    assert "repetition" in found(SINGLE, search("Foku", "y"), search("  foku ", "y"))
    assert "repetition" in found(SINGLE, search("Foku museum museum museum museum museum", "y"))


def test_every_wrong_answer_has_one_cause_and_a_right_one_has_none():
    read = search("Foku", "founded in 193", "p1")
    assert error_cause(SINGLE, episode(read, answer="193"), 1.0) == ""
    assert error_cause(SINGLE, episode(read, answer="774"), 0.0) == "misread"
    assert error_cause(SINGLE, episode(search("Foku", "no year", "p1"), answer="774"), 0.0) == "not_read"
    assert error_cause(SINGLE, episode(search("Foku", "193", "p9"), answer="774"), 0.0) == "not_retrieved"
    assert error_cause(SINGLE, episode(read), 0.0) == "no_answer"
    assert error_cause(SINGLE, episode(read, stop=StopReason.INFRA_FAILURE), 0.0) == "infrastructure"


def test_a_page_whose_text_was_never_printed_was_not_read():
    silent = program("t = read_section('p1:full')", NOTHING_PRINTED, call("read_section", "p1:full", "p1"))
    assert error_cause(SINGLE, episode(silent, answer="774", protocol="code"), 0.0) == "not_read"
    later = program("print(t)", "Output:\nFoku was founded in 193.")
    assert error_cause(SINGLE, episode(silent, later, answer="774", protocol="code"), 0.0) == "misread"


def test_a_title_in_a_list_is_not_a_fact_that_was_read():
    listed = program("...", "Output:\nFoku\nSava", call("search_pages", "river of Foku", "p2", "p1"))
    assert error_cause(BRIDGE, episode(listed, answer="Drava", protocol="code"), 0.0) == "not_read"


def test_a_comparison_is_read_when_both_facts_were_shown():
    one = search("Mount A height", "900 metres", "p1")
    both = (one, search("Mount B height", "It is 1,200 metres high.", "p2"))
    assert error_cause(COMPARISON, episode(*both, answer="Mount A"), 0.0) == "misread"
    assert error_cause(COMPARISON, episode(one, answer="Mount A"), 0.0) == "not_retrieved"


def test_without_hops_and_pages_the_answer_itself_tells_what_was_read():
    plain = Question("q", "who wrote it", ("Ana Lund",))
    assert error_cause(plain, episode(search("it", "By Ana Lund.", "7"), answer="Bo"), 0.0) == "misread"
    assert error_cause(plain, episode(search("it", "By nobody.", "7"), answer="Bo"), 0.0) == "not_retrieved"


def test_hostile_text_of_a_megabyte_is_named_and_not_hung_on():
    for text in ("[" * 10**6, "[](" * 10**5, "\n" * 10**6, "<think>" * 30_000, "search " * 30_000):
        assert "format_break" in found(SINGLE, invalid(text))
        found(SINGLE, program(text, "Error:\n" + text), answer=text, protocol="code")
