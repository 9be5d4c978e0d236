"""The command line itself: names, laziness, completion, and how failures and Ctrl-C reach a person."""

import os
import subprocess
import sys

import pytest

from seekling.cli import index, sandbox
from seekling.cli.main import COMMANDS
from seekling.config import RECIPES, load_recipe
from tests.commands import seekling

FOURTEEN = {"init", "ask", "chat", "serve", "train", "eval", "index", "search", "report", "export", "doctor"}
FOURTEEN |= {"collect", "sandbox", "data"}
HEAVY = ("torch", "transformers", "bm25s", "pyarrow", "tokenizers", "numpy", "pydantic", "peft", "gguf")


def test_help_names_every_command_with_its_line():
    output = " ".join(seekling("--help").output.replace("│", " ").split())
    assert {name for name in COMMANDS if " " not in name} == FOURTEEN
    for name in FOURTEEN:
        assert f" {name} {COMMANDS[name].help}" in output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_shows_its_own_help_and_the_flags_that_make_another_of_it(name):
    result = seekling(*name.split(), "--help")
    assert result.exit_code == 0, result.output
    assert f"seekling {name} " in result.output
    assert COMMANDS[name].help in result.output
    for other in COMMANDS:
        if other.startswith(f"{name} "):
            assert other.removeprefix(name) in result.output


def test_a_flag_picks_its_command_wherever_it_stands(tmp_path):
    for words in (["report", "--table", tmp_path], ["report", tmp_path, "--table"]):
        assert "is not a run folder" in seekling(*words).stderr


def test_a_misspelt_command_exits_with_2_and_is_told_the_nearest():
    result = seekling("trian")
    assert result.exit_code == 2
    assert "Did you mean 'train'" in result.stderr


def test_showing_help_imports_no_heavy_package():
    program = (
        "import sys, contextlib, io\n"
        "from seekling.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main(['--help'])\n"
        f"print(sorted({set(HEAVY)} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("seekling re", {"report"}),
        ("seekling report --ta", {"--table"}),
        ("seekling report --table --sh", {"--show"}),
        ("seekling data al", {"almanac"}),
        ("seekling train nq", {"nq-mini"}),
    ],
)
def test_the_shell_completes_commands_options_and_recipes(typed, offered):
    words = {"_SEEKLING_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "from seekling.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True)
    assert set(done.stdout.split()) == offered


def test_an_error_meant_for_people_is_one_message_on_stderr_and_exit_code_1(tmp_path):
    result = seekling("train", tmp_path / "no.toml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"error: no recipe at {tmp_path / 'no.toml'}; expected a TOML file, or the name of a"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [(["index", "c", "--out", "i"], "stopped; the same command resumes\n"), (["sandbox", "x.py"], "stopped\n")],
)
def test_ctrl_c_says_what_became_of_the_work_and_exits_with_130(words, said, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "_read_program", interrupted)
    monkeypatch.setattr(index.time, "monotonic", interrupted)
    result = seekling(*words)
    assert (result.exit_code, result.stderr) == (130, said)


def test_the_recipes_that_come_along_are_listed_with_a_line_each():
    lines = seekling("train", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(RECIPES)
    assert all(len(line) < 140 for line in lines)
    assert "demo                       A 135M model learns to search an almanac" in lines[3]


def test_init_writes_a_recipe_that_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Engine\n\nAda wrote the first program for the engine.\n")
    (tmp_path / "qa.jsonl").write_text('{"question": "Who?", "answers": ["Ada"], "supporting_ids": ["a"]}\n')
    assert seekling("init", "notes", "qa.jsonl", "--out", "mine.toml").exit_code == 0
    recipe = load_recipe("mine.toml")
    assert (recipe.name, recipe.data.corpus, recipe.data.train) == ("mine", "notes", "qa.jsonl")
    assert "# 1 questions, of which 1 name their pages" in (tmp_path / "mine.toml").read_text()
    assert "seekling train mine.toml" in (tmp_path / "mine.toml").read_text()
    assert seekling("train", "mine.toml", "--dry-run").exit_code == 0
    assert "exists already" in seekling("init", "notes", "qa.jsonl", "--out", "mine.toml").stderr
    assert "there is no nowhere" in seekling("init", "nowhere", "qa.jsonl").stderr


@pytest.mark.parametrize(("given", "kept"), [(None, "4"), ("20", "20")])
def test_numpys_threads_are_told_not_to_spin_before_numpy_is_loaded(given, kept):
    script = (
        "import seekling.cli.main, os, sys\n"
        "assert 'numpy' not in sys.modules\n"
        "print(os.environ['OPENBLAS_THREAD_TIMEOUT'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    if given:
        environment["OPENBLAS_THREAD_TIMEOUT"] = given
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{kept}\n"
