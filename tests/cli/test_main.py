"""The command line itself: names, laziness, and how failures reach a person."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import seekling.cli
from seekling.cli.main import ENTRIES, build_app, guarded, main
from seekling.errors import ConfigError

CLI_FOLDER = Path(seekling.cli.__file__).parent
PRESENT = [entry for entry in ENTRIES if importlib.util.find_spec(entry.module) is not None]


def app_of(command) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(guarded(command))
    return app


def top_level_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    return functions | {target.id for target in targets if isinstance(target, ast.Name)}


def test_help_names_every_command_that_exists():
    result = CliRunner().invoke(build_app(wanted=None), ["--help"], terminal_width=200)
    assert result.exit_code == 0
    for entry in PRESENT:
        assert f" {entry.name} " in result.output


@pytest.mark.parametrize("entry", PRESENT, ids=lambda entry: entry.name)
def test_the_line_of_help_is_the_first_line_of_the_commands_docstring(entry):
    path = CLI_FOLDER / f"{entry.module.rpartition('.')[2]}.py"
    if entry.is_group:
        assert "app" in top_level_names(path)
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    commands = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "command"]
    assert (ast.get_docstring(commands[0]) or "").splitlines()[0] == entry.help


def test_every_module_with_a_command_is_in_the_table():
    with_commands = {path.stem for path in CLI_FOLDER.glob("*.py") if {"command", "app"} & top_level_names(path)}
    assert with_commands <= {entry.module.rpartition(".")[2] for entry in ENTRIES}


@pytest.mark.parametrize("entry", PRESENT, ids=lambda entry: entry.name)
def test_each_command_shows_its_own_help(entry):
    result = CliRunner().invoke(build_app(wanted=entry.name), [entry.name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"seekling {entry.name}" in result.output or f"root {entry.name}" in result.output


def test_showing_help_imports_no_heavy_package():
    program = (
        "import sys, contextlib, io\n"
        "from seekling.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main(['--help'])\n"
        "heavy = {'torch', 'transformers', 'bm25s', 'pyarrow', 'tokenizers', 'numpy', 'pydantic', 'peft', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == "seekling 0.1.0\n"


def test_an_error_meant_for_people_is_one_message_on_stderr_and_exit_code_1():
    def command() -> None:
        raise ConfigError("recipes/x.toml: 1 problem(s)\n  rl.stepps: no such setting")

    result = CliRunner().invoke(app_of(command), [])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: recipes/x.toml: 1 problem(s)\n  rl.stepps: no such setting\n"


def test_a_bug_keeps_its_traceback():
    def command() -> None:
        raise ZeroDivisionError("ours")

    result = CliRunner().invoke(app_of(command), [])
    assert isinstance(result.exception, ZeroDivisionError)


def test_ctrl_c_says_that_the_same_command_resumes_and_exits_with_130():
    def command() -> None:
        raise KeyboardInterrupt

    result = CliRunner().invoke(app_of(command), [])
    assert result.exit_code == 130
    assert result.stderr == "stopped; the same command resumes\n"


def test_guarding_keeps_the_commands_options_and_docstring():
    def command(name: str, loud: bool = typer.Option(False, "--loud", help="Shout it.")) -> None:
        """Greet a person."""
        typer.echo(name.upper() if loud else name)

    runner = CliRunner()
    assert runner.invoke(app_of(command), ["ada", "--loud"]).output == "ADA\n"
    assert "Greet a person." in runner.invoke(app_of(command), ["--help"]).output


def test_a_misspelt_command_exits_with_2_and_names_it(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["trian"])
    assert stop.value.code == 2
    assert "trian" in capsys.readouterr().err


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
