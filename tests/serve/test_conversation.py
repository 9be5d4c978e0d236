"""Follow-up questions, as they are asked of the agent."""

from __future__ import annotations

import time

import pytest

from seekling.serve.conversation import stand_alone

BUILDER = [("Who built Orla Mill?", "Tobias Wren")]
CAPITAL = [("What is the capital of Chad?", "N'Djamena")]
PEOPLE = [("What is the population of Chad?", "19,093,595 (2024 est.)")]
RULER = [("Who is the president of Chad?", "Mahamat Deby")]
BIRTHPLACE = [("Where was Tobias Wren born?", "Harrow Dell")]


@pytest.mark.parametrize(
    ("before", "question", "asked"),
    [
        (BUILDER, "And when was he born?", "When was Tobias Wren born?"),
        (BUILDER, "And who was his teacher?", "Who was Tobias Wren's teacher?"),
        (BUILDER, "When was it built?", "When was Orla Mill built?"),
        (BUILDER, "And Birch Mill?", "Who built Birch Mill?"),
        (BUILDER, "What about Birch Mill?", "Who built Birch Mill?"),
        (BUILDER, "Then of Birch Mill?", "Who built Birch Mill?"),
        (BUILDER, "Birch Mill?", "Who built Birch Mill?"),
        (BIRTHPLACE, "Where did he die?", "Where did Tobias Wren die?"),
        (BIRTHPLACE, "How many people live there?", "How many people live in Harrow Dell?"),
        (BIRTHPLACE, "Which river flows through that place?", "Which river flows through Harrow Dell?"),
        ([*BUILDER, ("When was he born?", "1612")], "Who taught him?", "Who taught Tobias Wren?"),
        ([*BUILDER, ("And Birch Mill?", "Maud Ferris")], "Did she marry?", "Did Maud Ferris marry?"),
        ([("What does os.path.join do?", "joins paths")], "What does it return?", "What does os.path.join return?"),
        (PEOPLE, "And its capital?", "What is the capital of Chad?"),
        (PEOPLE, "What about its capital?", "What is the capital of Chad?"),
        (PEOPLE, "And its neighbours?", "What are the neighbours of Chad?"),
        (PEOPLE, "And the capital?", "What is the capital of Chad?"),
        (PEOPLE, "And Sudan's?", "What is the population of Sudan?"),
        # One property after another: of the same thing, though the answer is a name too.
        (CAPITAL, "And its population?", "What is the population of Chad?"),
        (CAPITAL, "What is their currency?", "What is Chad's currency?"),
        (CAPITAL, "How many people live there?", "How many people live in N'Djamena?"),
        ([*CAPITAL, ("And its population?", "19 million")], "And its area?", "What is the area of Chad?"),
        (RULER, "And his age?", "What is the age of Mahamat Deby?"),
        (RULER, "And its capital?", "What is the capital of Chad?"),
        (
            [("What is the birthplace of Ann Lee?", "Harrow Dell")],
            "And her teacher?",
            "What is the teacher of Ann Lee?",
        ),
        ([("What is the birthplace of Ann Lee?", "Harrow Dell")], "When did she die?", "When did Ann Lee die?"),
        ([("Which river flows through Harrow Dell?", "Senn")], "And its length?", "What is the length of Senn?"),
        ([("What is the longest river of Chad?", "Chari")], "And its length?", "What is the length of Chari?"),
        (
            [("What is the IDPs of Saint Pierre and Miquelon?", "3")],
            "And its area?",
            "What is the area of Saint Pierre and Miquelon?",
        ),
        (
            [('What does the page on Chad give as "Coastline Length 2024"?', "0 km")],
            "And its area?",
            "What is the area of Chad?",
        ),
        ([("What is the type of Chad?", "Presidential republic")], "How large is it?", "How large is Chad?"),
        (
            [("Which class keeps order?", "collections.deque")],
            "Since when does it exist?",
            "Since when does collections.deque exist?",
        ),
        (BIRTHPLACE, "How big is that?", "How big is Harrow Dell?"),
        (BIRTHPLACE, "Is that a town?", "Is Harrow Dell a town?"),
        ([("what is the population of chad?", "19 million")], "and its capital?", "What is the capital of chad?"),
        (
            [("What does the zip function return?", "an iterator")],
            "What does it raise?",
            "What does the zip function raise?",
        ),
        ([("When was Orla Mill built?", "1612")], "And who built it?", "Who built Orla Mill?"),
        (BUILDER, "Is it known that he married?", "Is it known that Tobias Wren married?"),
    ],
)
def test_a_follow_up_question_is_made_to_stand_for_itself(before: list[tuple[str, str]], question: str, asked: str):
    assert stand_alone(question, before) == asked


@pytest.mark.parametrize("size", [26, 4000])
@pytest.mark.parametrize(
    "text",
    [
        "And {a_}!",
        "of {a_}!?",
        "And {a.}!",
        "what about {a.b_}!",
        "And{ }x",
        "{?}x",
        "{A }!",
        "{of }",
        "{its }",
        "what is {west of }!",
    ],
)
def test_no_question_keeps_the_rules_busy(text: str, size: int):
    # A stranger's question is reworded in the thread that serves everybody. Of a pattern that matches in many ways, 26
    # characters take seconds, and 4,000 for ever.
    begin, _, rest = text.partition("{")
    piece, _, end = rest.partition("}")
    hostile = f"{begin}{piece * size}"[:size] + end
    started = time.process_time()
    for question, before in (
        (hostile, BUILDER),
        ("And its size?", [(hostile, "x")]),
        ("Who?", [("What is it?", hostile)]),
    ):
        stand_alone(question, before)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("before", "question"),
    [
        ([], "When was he born?"),
        ([("Who built Orla Mill?", "unknown")], "When was he born?"),
        (BUILDER, "Where was Ann Lee when she died?"),
        (BUILDER, "How many bridges are there?"),
        (BUILDER, "Who built Alder Mill?"),
        (BUILDER, "Why?"),
        (BUILDER, "The wheel?"),
        (BUILDER, "Is it true that mills grind?"),
    ],
)
def test_what_names_its_own_subject_or_has_nobody_to_mean_stays_as_it_is(before: list[tuple[str, str]], question: str):
    assert stand_alone(question, before) == question
