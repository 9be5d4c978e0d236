"""From a folder of documents to a recipe that trains: what `seekling init` makes of them."""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from seekling.config import MixConfig, load_recipe
from seekling.corpus import questions
from seekling.corpus.html import html_to_markdown
from seekling.corpus.making.questions import candidates
from seekling.corpus.questions import read_questions
from seekling.errors import ModelError
from seekling.experts.select import collect
from seekling.pipeline import closed_book, making
from seekling.pipeline.world import open_world
from seekling.retrieval.index_record import read_record
from seekling.retrieval.library import open_library
from seekling.types import UNANSWERABLE, Document, Question
from tests.chat_server import chat_server, completion
from tests.commands import seekling
from tests.pipeline.runs import QuietReporter

FUNCTION = """<dt>{module}.{name}(<em>data</em>, <em>limit={default}</em>)<a class="headerlink">\u00b6</a></dt>
<dd><p>Return the {answer} of the given values.</p><p>If data is empty, {error} is raised.</p>
<p>New in version 3.{version}.</p></dd>"""
PAGE = """<html><head><title>{module}</title></head><body><div class="related" role="navigation"><a>next</a></div>
<h1>{module} \u2014 Tools<a class="headerlink" href="#x">\u00b6</a></h1>
<p>This module provides {tools} for careful people.</p><dl>{functions}</dl></body></html>"""
WORDS = ["mean", "median", "range", "spread", "mode", "total", "peak", "floor", "slope", "share"]


def seekling_init(*words):
    """Without asking a model."""
    return seekling("init", *words, "--closed-book", "none")


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """Ten pages of made-up documentation, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for page, word in enumerate(WORDS):
        functions = [
            FUNCTION.format(
                module=f"{word}kit",
                name=f"{word}_{kind}",
                default=10 * page + number,
                answer=f"{kind} {word} as a decimal fraction",
                error=f"{kind.title()}Error",
                version=page + number,
            )
            for number, kind in enumerate(["plain", "fast", "exact"])
        ]
        text = PAGE.format(module=f"{word}kit", tools=f"measures of {word}", functions="".join(functions))
        (tmp_path / "docs" / f"{word}.html").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_folder_becomes_a_recipe_whose_questions_the_expert_solves(docs):
    result = seekling_init("docs", "--out", "mine.toml", "--num-questions", 60)
    assert result.exit_code == 0, result.output
    assert "documents: 10 (10 html)" in result.stdout
    assert "mostly english" in result.stdout
    recipe = load_recipe("mine.toml")
    questions = read_questions(recipe.data.train)
    texts = {question.question: question.answers[0] for question in questions}
    assert any("limit" in text and answer.isdigit() for text, answer in texts.items())
    assert any("exception" in text and answer.endswith("Error") for text, answer in texts.items())
    assert any(question.kind == UNANSWERABLE for question in questions)
    assert all(question.supporting_ids and question.hops for question in questions)

    world = open_world(recipe, docs / "run", QuietReporter())
    assert not (docs / "run" / "index").exists()  # the one that init built is used
    pages = [{page for each in part for page in each.supporting_ids} for part in (world.train, world.test)]
    assert pages[0]
    assert pages[1]
    assert not pages[0] & pages[1]
    known = [question for question in questions if question.kind != UNANSWERABLE]
    selection = collect(making.search_env(world.library, recipe), known, title_of=world.library.title_of)
    assert len(selection.kept) >= 0.9 * len(known), selection
    assert seekling("train", "mine.toml", "--dry-run").exit_code == 0
    assert "exists already" in seekling_init("docs", "--out", "mine.toml").stderr


def test_an_index_is_brought_up_to_date_with_the_settings_it_has_and_another_recipe_is_told_so(docs):
    assert seekling_init("docs", "--out", "mine.toml").exit_code == 0
    page = (docs / "docs" / "mean.html").read_text().replace("mean", "zenith")
    (docs / "docs" / "zenith.html").write_text(page)
    assert "9 kept" not in seekling("index", "docs", "--out", "mine.index", "--update").stdout
    recipe = load_recipe("mine.toml")
    assert open_library("mine.index", recipe.retrieval).search("zenithkit", 1)[0].passage.document_id == "zenith"
    other = seekling("eval", "mine.toml", "retrieval.index.passage_words=99", "--out", "run")
    assert other.exit_code == 1
    assert "made with other settings" in other.stderr.replace("\n", " ")


def test_what_makes_a_question_worthless_is_said_before_training(docs):
    assert seekling_init("docs", "--out", "mine.toml").exit_code == 0
    good = {"question": "What is the default of limit in meankit.mean_fast?", "answers": ["1"]}
    rows = [
        good | {"supporting_ids": ["mean"]},
        good | {"supporting_ids": ["mean"], "id": "again"},
        good | {"question": "Is 1 the default?", "supporting_ids": ["mean"]},
        good | {"question": "What is lost?", "supporting_ids": ["gone"]},
        good | {"question": "What is nowhere?", "answers": ["an elephant"], "supporting_ids": ["mode"]},
        good | {"question": "What has no page?"},
    ]
    (docs / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = seekling_init("docs", "own.jsonl", "--out", "own.toml", "--index", "mine.index").stdout
    for problem in (
        "says the same as another question",
        "the answer stands in the question",
        "names a page that is not in the corpus",
        "the answer stands in none of its pages",
        "names no supporting page",
    ):
        assert f"warning: 1 of 6 questions: {problem}" in said
    reporter = QuietReporter()
    lines = []
    reporter.line = lines.append
    recipe = load_recipe("own.toml", ["data.test=mine.questions.jsonl", "data.dev_fraction=0"])
    open_world(recipe, docs / "run", reporter)
    assert "warning: 1 of 6 training questions: names no supporting page" in lines


def test_a_teacher_writes_questions_that_are_checked_as_all_are(docs):
    def respond(body):
        case = json.loads(body["messages"][1]["content"])
        name = case["page"].partition(" ")[0]
        rows = [
            {"question": f"For whom is {name} made?", "answer": "careful people", "subject": name, "relation": "for"},
            {"question": f"Who made {name}?", "answer": "an elephant", "subject": name, "relation": "made by"},
        ]
        return 200, completion("\n".join(map(json.dumps, rows)) + "\nnot a question")

    with chat_server(respond) as server:
        result = seekling_init("docs", "--out", "mine.toml", "--teacher", server.url)
    assert result.exit_code == 0, result.output
    taught = [each for each in read_questions("mine.questions.jsonl") if "teacher" in each.labels]
    assert len(taught) == len(WORDS)
    assert {question.answers[0] for question in taught} == {"careful people"}
    assert "10 dropped: the answer stands in none of its pages" in result.stdout


def test_ctrl_c_leaves_no_recipe_and_the_next_try_works(docs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(questions, "write_atomically", interrupted)
        assert seekling_init("docs", "--out", "mine.toml").exit_code == 130
    assert sorted(path.name for path in docs.iterdir()) == ["docs", "mine.index"]
    assert "used as it is" in seekling_init("docs", "--out", "mine.toml").stdout


def test_a_folder_with_damaged_files_is_read_but_for_them_and_each_is_named_with_the_reason(docs):
    folder = docs / "docs"
    (folder / "bad.txt").write_bytes(b"caf\xe9")
    rows = ['{"id": "first row", "title": "Row", "content": "A row."}', "broken", '{"id": "lost", "title": "Row"}']
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "scan.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    (folder / "table.parquet").write_bytes(b"PAR1 and then nothing")
    (folder / "half.jsonl.gz").write_bytes(gzip.compress(b'{"id": "x", "title": "X", "content": "y"}\n' * 9)[:-9])
    (folder / "gone.md").symlink_to(folder / "nowhere.md")
    (docs / "secret.md").write_text("# Secret\n\nNot meant for the index.")
    (folder / "out.md").symlink_to(docs / "secret.md")
    (folder / "mean.md").write_text("# Twice\n\nOf one name with mean.html.")
    with contextlib.closing(sqlite3.connect(folder / "notes.sqlite")) as base:
        base.execute("create table notes (text)")
    result = seekling_init("docs", "--out", "mine.toml")
    assert result.exit_code == 0, result.output
    assert "documents: 11 (10 html, 1 jsonl)" in result.stdout
    assert "hold no pages, left out: 1 .sqlite" in result.stdout
    assert "could not be read, left out: 8" in result.stdout
    reasons = {
        "docs/bad.txt": "not UTF-8",
        "docs/scan.pdf": "a PDF that cannot be read",
        "docs/table.parquet": "damaged Parquet",
        "docs/half.jsonl.gz": "damaged compressed file",
        "docs/gone.md": "a link that leads nowhere",
        "docs/out.md": "a link that leads out of the folder",
        "docs/mean.md": "another page has the id 'mean' already",
        "docs/rows.jsonl:2": "the rows after it are not read",
    }
    lines = [line.strip() for line in result.stdout.splitlines()]
    for path, reason in reasons.items():
        assert [line for line in lines if line.startswith(path) and reason in line], (path, result.stdout)
    assert "left out" not in result.stderr, "it is said once"
    assert "EOF marker" not in result.stderr
    record = read_record(docs / "mine.index")
    assert (record.counts.documents, len(record.left_out)) == (11, 8)

    (folder / "more.html").write_text((folder / "mean.html").read_text().replace("mean", "zenith"))
    updated = seekling("index", "docs", "--out", "mine.index", "--update")
    assert "11 kept, 0 changed, 1 added" in updated.stdout, updated.output
    assert "could not be read, left out: 8" in updated.stdout
    strict = seekling("index", "docs", "--out", "strict.index")
    assert strict.exit_code == 1, "who did not ask for it gets no index with holes"


def test_a_folder_of_which_nothing_can_be_read_says_why(docs):
    (docs / "bad").mkdir()
    (docs / "bad" / "a.txt").write_bytes(b"caf\xe9")
    result = seekling_init("bad", "--out", "mine.toml")
    assert result.exit_code == 1
    assert "no page of bad can be read" in result.stderr
    assert "not UTF-8" in result.stderr


def test_german_pages_are_asked_in_german(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hilfe").mkdir()
    for number, name in enumerate(["Weichzeichnen", "Verpixeln", "Aufhellen", "Zuschneiden", "Drehen"]):
        text = (
            f"# {number}.1. {name}\n\nMit diesem Befehl können Sie die Farben der Ebene {name[:4].lower()}artig "
            f"verändern. Der Befehl ist über das Menü Bild → Farbe → {name} erreichbar, oder über das Tastenkürzel "
            f"Strg+{name[0]}, und das ist nicht schwer."
        )
        (tmp_path / "hilfe" / f"{name}.md").write_text(text, encoding="utf-8")
    result = seekling_init("hilfe", "--out", "hilfe.toml")
    assert result.exit_code == 0, result.output
    assert load_recipe("hilfe.toml").retrieval.index.language == "german"
    asked = {each.question: each.answers[0] for each in read_questions("hilfe.questions.jsonl")}
    assert "Strg+W" in asked.values()
    assert any(text.startswith(("Über welches Menü", "Wo in den Menüs")) for text in asked)


def test_records_are_asked_for_their_fields_and_for_those_that_they_lack(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ships").mkdir()
    for number, word in enumerate(WORDS):
        tonnage = f"**Tonnage**: {100 + number} tons (laden)\n\n" if number else ""  # the first does not say
        lines = f"Builder: Yard of {word}\nLaunched: {1900 + number}\nCargo: coal, tin and {word}"
        text = (
            f"# Ship {word.title()}\n\n## Hull\n\n{tonnage}- **Sister:** Ship {WORDS[number - 1].title()}\n\n{lines}\n"
        )
        (tmp_path / "ships" / f"{word}.md").write_text(text, encoding="utf-8")
    assert seekling_init("ships", "--out", "mine.toml", "--num-questions", 60).exit_code == 0
    made = read_questions(tmp_path / "mine.questions.jsonl")
    answers = {
        (each.hops[0].query_subject, each.hops[0].relation): each.answers[0] for each in made if len(each.hops) == 1
    }
    assert answers["Ship Median", "tonnage"] == "101 tons"
    assert answers["Ship Median", "launched"] == "1901"
    assert {relation for _, relation in answers} == {"tonnage", "builder", "launched", "sister"}  # cargo is a list
    lacking = [each.hops[0] for each in made if each.kind == UNANSWERABLE]
    assert [(hop.query_subject, hop.relation) for hop in lacking] == [("Ship Mean", "tonnage")]
    bridge = next(each for each in made if len(each.supporting_ids) == 2 and each.labels[0] == "field")
    assert "sister of Ship" in bridge.question
    assert bridge.hops[0].answer == bridge.hops[1].query_subject


def test_questions_over_two_pages_link_few_pages_and_name_both(docs):
    """So that whole groups of pages can be held out."""
    for number, word in enumerate(WORDS):
        text = (
            f"# Ship {word.title()}\n\nBuilder: {word.title()}wharf\nLaunched: {1900 + number}\nCrew: {number}0 men\n"
        )
        text += f"Owner: line of Ship {WORDS[number - 1].title()}\n\nBeside Ship {WORDS[(number + 1) % 10].title()}.\n"
        (docs / "docs" / f"ship_{word}.md").write_text(text, encoding="utf-8")
    result = seekling_init("docs", "--out", "mine.toml", "--two-pages", "0.5", "--num-questions", "200")
    assert result.exit_code == 0, result.output
    made = read_questions("mine.questions.jsonl")
    two = [each for each in made if len(each.supporting_ids) == 2]
    assert f"{len(two):,} over two pages" in result.stdout
    several = [each for each in two if each.kind == "several"]
    assert several
    for each in several:
        first, second = each.hops
        assert first.query_subject in each.question
        assert second.query_subject in each.question
        assert each.answers[0] == f"{first.answer} and {second.answer}"
    mentions = [each for each in two if "mention" in each.labels]
    assert mentions
    assert all(each.hops[0].answer == each.hops[1].query_subject not in each.question for each in mentions)
    groups: list[set[str]] = []
    for each in two:
        linked = [group for group in groups if group & set(each.supporting_ids)]
        groups = [group for group in groups if group not in linked] + [set(each.supporting_ids).union(*linked)]
    assert max(map(len, groups)) <= 6
    calls = [each for each in made if "described" in each.labels]
    assert calls
    for each in calls:
        assert each.hops[0].answer not in each.question
        assert each.hops[0].query_subject in each.question


def test_definitions_of_html_keep_term_and_meaning_together():
    page = html_to_markdown(
        "<h2>Basic types<a class='headerlink'>\u00b6</a></h2><dl><dt>class A()</dt><dd><p>An A.</p><p>More.</p>"
        "<dl><dt>b()</dt><dd>A b.</dd></dl></dd></dl><p>After.</p><div role='navigation'>next</div>"
        "<table><tr><th>Key</th><th>Means</th></tr><tr><td>x</td><td>y</td></tr></table>"
    )
    assert page.markdown == (
        "## Basic types\n\nclass A()\n: An A.\n\n: More.\n\nb()\n:: A b.\n\nAfter.\n\n"
        "| Key | Means\n| --- | --- |\n| x | y"
    )


LIMIT = "What is the default value of limit in rangekit.range_exact?"
MILL = Question("mill", "Who built the mill?", ("the guild", "Ann Lee"), source="s")


@pytest.fixture(scope="module")
def knowing(tiny_model_dir, tmp_path_factory):
    """A model that has learned by heart who built the mill, and what the default of a limit is."""
    model, tokenizer = (each.from_pretrained(tiny_model_dir) for each in (AutoModelForCausalLM, AutoTokenizer))
    rows = []
    for question, reply in ((MILL.question, " The Ann Lee of old\n"), (LIMIT, " 22\n")):
        prompt = tokenizer.encode(closed_book.PROMPT.format(question=question))
        told = tokenizer.encode(reply, add_special_tokens=False)
        rows.append((torch.tensor([[*prompt, *told]]), torch.tensor([[-100] * len(prompt) + told])))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(200):
        optimizer.zero_grad()
        tokens, labels = rows[step % len(rows)]
        model(tokens, labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("knowing")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_only_what_the_model_says_by_itself_is_known(knowing):
    asked = [
        MILL,
        replace(MILL, id="begins in the same way", answers=("Ann Leeds", "Bob")),
        replace(MILL, id="without the article", answers=("ann lee of old",)),
        replace(MILL, id="not known", answers=("Bob Hill",)),
        replace(MILL, id="unanswerable", kind=UNANSWERABLE),
        replace(MILL, id="named in the question", kind="comparison", question="Who built it, Ann Lee or Bob Hill?"),
    ]
    folder = closed_book.find_model(knowing, QuietReporter())
    known = closed_book.answered_closed_book(asked, folder, QuietReporter())
    assert known == {asked[0].key, asked[2].key}


def test_made_questions_that_a_model_answers_without_the_pages_are_left_out(docs, knowing):
    made = seekling("init", "docs", "--out", "all.toml", "--closed-book", "none")
    assert "without the pages" not in made.stdout
    assert LIMIT in {each.question for each in read_questions("all.questions.jsonl")}
    checked = seekling("init", "docs", "--out", "mine.toml", "--index", "all.index", "--closed-book", knowing)
    assert "1 answerable without the pages: left out" in checked.stdout, checked.stdout
    assert LIMIT not in {each.question for each in read_questions("mine.questions.jsonl")}


def test_without_a_model_init_says_so_and_goes_on(docs, monkeypatch):
    def unreachable(spec, **_):
        raise ModelError("nothing is reachable")

    monkeypatch.setattr(closed_book, "resolve_model", unreachable)
    result = seekling("init", "docs", "--out", "mine.toml")
    assert result.exit_code == 0, result.output
    assert "no check of what a model answers without the pages: there is no model (nothing is reachable)" in (
        result.stdout.replace("\n", " ")
    )
    wrong = seekling("init", "docs", "--out", "other.toml", "--closed-book", "nowhere")
    assert wrong.exit_code == 1
    assert "nothing is reachable" in wrong.stderr


def test_an_answer_is_right_too_with_all_that_its_sentence_goes_on_to_say():
    function = FUNCTION.format(
        module="arckit", name="arc", default=1, answer="slope of a line, in radians", error="E", version=3
    ).replace(" of the given values", "")
    text = PAGE.format(module="arckit", tools="tools", functions=function)
    page = html_to_markdown(text).markdown
    made = candidates([Document("arckit", "arckit — Tools", page)], "english", MixConfig())
    (asked,) = [each for each in made if "returns" in each.labels]
    in_full = ("the slope of a line, in radians", "slope of a line, in radians")
    assert asked.answers == ("the slope of a line", "slope of a line", *in_full)
    assert asked.hops[0].answer == "the slope of a line"
