"""What people said of a served agent's answers becomes questions that name their pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from seekling.corpus.questions import read_questions
from seekling.corpus.splits import split_by_page
from seekling.errors import DataError
from seekling.pipeline.feedback import export_feedback
from seekling.types import UNANSWERABLE, Question
from tests.app_server import send
from tests.commands import seekling
from tests.experts.village import SINGLE
from tests.serve.serving import serve_village

SAID = [
    ("When was Alder Mill built?", {"thumbs": "up"}),
    ("Who is the maker of Birch Mill?", {"correction": "Maud Ferris"}),
    ("When was the wheel of Alder Mill built?", {"correction": "three years later"}),
    ("Does Birch Mill have a name?", {"correction": "no"}),
    ("What is the colour of Alder Mill?", {"thumbs": "up"}),
    ("Who painted the moon?", {"thumbs": "down", "correction": "unknown"}),
    ("Where is the moon?", {"thumbs": "down"}),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """A served run in which people said what is right."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "recipe.toml").write_text("[retrieval.index]\npassage_words = 40\n", encoding="utf-8")
    with serve_village(folder, tiny_model_dir) as village:
        for question, said in SAID:
            body = {"model": "village", "messages": [{"role": "user", "content": question}]}
            answer = send(f"{village.url}/v1/chat/completions", body).json["id"]
            assert send(f"{village.url}/v1/feedback", {"id": answer, **said}).status == 200
    return folder


@pytest.fixture(scope="module")
def made(run: Path) -> dict[str, Question]:
    export_feedback(run, run / "feedback.jsonl")
    return {each.question: each for each in read_questions(run / "feedback.jsonl")}


@pytest.mark.parametrize(
    ("question", "answer", "pages"),
    [
        ("When was Alder Mill built?", "1612", ("alder_mill",)),
        # Not found, but two of the pages that came back name her: the question's is that of the mill.
        ("Who is the maker of Birch Mill?", "Maud Ferris", ("birch_mill",)),
        # No page says so: what was quoted is all that is known.
        ("When was the wheel of Alder Mill built?", "three years later", ("alder_mill",)),
        ("Does Birch Mill have a name?", "no", ()),
        ("What is the colour of Alder Mill?", "unknown", ("alder_mill",)),
        ("Who painted the moon?", "unknown", ()),
    ],
)
def test_a_judged_answer_names_the_pages_it_is_about(
    made: dict[str, Question], question: str, answer: str, pages: tuple[str, ...]
):
    assert (made[question].answers[0], made[question].supporting_ids) == (answer, pages)


def test_what_is_not_in_the_documents_is_unanswerable(made: dict[str, Question]):
    kinds = {each.question for each in made.values() if each.kind == UNANSWERABLE}
    assert kinds == {"What is the colour of Alder Mill?", "Who painted the moon?"}


@pytest.mark.parametrize("fraction", [0.2, 0.4, 0.6, 0.8])
def test_the_split_by_page_keeps_corrections_with_the_other_questions_about_their_pages(
    made: dict[str, Question], fraction: float
):
    others = [
        SINGLE,
        *(Question(page, f"What is said of {page}?", ("x",), (page,)) for page in ("alder_mill", "birch_mill")),
        *(Question(str(number), f"Is it {number}?", ("x",), (f"page {number}",)) for number in range(10)),
    ]
    _, held = split_by_page([*made.values(), *others], fraction)
    for page in ("alder_mill", "birch_mill"):
        about = [each for each in (*made.values(), *others) if page in each.supporting_ids]
        assert len(about) > 1
        assert len({each in held for each in about}) == 1


def test_the_command_says_how_many_and_what_is_missing(run: Path, tmp_path: Path):
    result = seekling("data", "feedback", run, "--out", tmp_path / "made.jsonl")
    assert result.exit_code == 0, result.output
    assert "6 questions (4 corrected, 2 unanswerable); for 2 of them no page is known" in result.stdout
    assert "; 1 answer is wrong and nobody said what is right" in result.stdout


def test_feedback_that_says_nothing_right_is_an_error_in_whole_words(tmp_path: Path, tiny_model_dir: Path):
    (tmp_path / "recipe.toml").write_text("[retrieval.index]\npassage_words = 40\n", encoding="utf-8")
    with serve_village(tmp_path, tiny_model_dir) as village:
        body = {"model": "village", "messages": [{"role": "user", "content": "Where is the moon?"}]}
        answer = send(f"{village.url}/v1/chat/completions", body).json["id"]
        send(f"{village.url}/v1/feedback", {"id": answer, "thumbs": "down"})
    with pytest.raises(DataError, match="nobody said what is right of 1 judged answer; expected thumbs up or"):
        export_feedback(tmp_path, tmp_path / "made.jsonl")
