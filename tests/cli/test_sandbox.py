"""`seekling sandbox`: one program, for people and as JSON."""

import json

import pytest

from seekling.cli.main import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", *map(str, words)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def write(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    return tmp_path / "program.py"


def test_json_is_one_object_with_outcome_stdout_and_error_text(tmp_path, capsys):
    program = write(
        tmp_path,
        "page = search_pages('river')[0]\nsection = view_sections(page['page_id'])[0]\n"
        "print(len(read_section(section['section_id'])) > 20)\nread_section('x')",
    )
    code, out, _ = run(capsys, program, "--json")
    row = json.loads(out)
    assert code == 0
    assert (row["outcome"], row["stdout"], row["host_calls"]) == ("error", "True\n", 4), row
    assert "Error: " in row["error_text"].splitlines()[-1]


def test_for_people_it_prints_outcome_output_and_error(tmp_path, capsys):
    code, out, _ = run(capsys, write(tmp_path, "print('[bold]said[/bold]')\n1 / 0"))
    assert code == 0
    assert out.startswith("outcome: error\n")
    assert "\nstdout:\n[bold]said[/bold]\nerror:\nTraceback (most recent call last):\n" in out
    assert out.endswith("ZeroDivisionError: division by zero\n")


def test_limits_come_from_a_recipe(tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text("[env.sandbox]\nsoft_limit_s = 0.2\n")
    program = write(tmp_path, "while True: pass")
    row = json.loads(run(capsys, program, "--json", "--recipe", tmp_path / "recipe.toml")[1])
    assert row["outcome"] == "timeout"
    assert "stopped after 0.2 s of processor time" in row["error_text"]


def test_a_program_that_is_not_there_is_one_line_and_exit_code_1(capsys):
    code, out, err = run(capsys, "nowhere.py")
    assert (code, out) == (1, "")
    assert "cannot read the program nowhere.py" in err
