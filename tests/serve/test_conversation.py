"""Follow-up questions, as they are asked of the agent."""

from __future__ import annotations

import pytest

from seekling.serve.conversation import stand_alone

BUILDER = [("Who built Orla Mill?", "Tobias Wren")]
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
    ],
)
def test_a_follow_up_question_is_made_to_stand_for_itself(before: list[tuple[str, str]], question: str, asked: str):
    assert stand_alone(question, before) == asked


@pytest.mark.parametrize(
    ("before", "question"),
    [
        ([], "When was he born?"),
        ([("Who built Orla Mill?", "unknown")], "When was he born?"),
        (BUILDER, "Where was Ann Lee when she died?"),
        (BUILDER, "How many bridges are there?"),
        (BUILDER, "Who built Alder Mill?"),
    ],
)
def test_what_names_its_own_subject_or_has_nobody_to_mean_stays_as_it_is(before: list[tuple[str, str]], question: str):
    assert stand_alone(question, before) == question
