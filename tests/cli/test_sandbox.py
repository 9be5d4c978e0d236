"""`seekling sandbox`: one program, for people and as JSON."""

import json

import pytest

from seekling.cli.main import main

FUNCTIONS = """
def search_pages(query):
    print("called on the host")
    return [{"page_id": "p1", "title": query.upper()}]

def read_section(section_id):
    raise ValueError(f"no section {section_id}")
"""


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def write(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    return str(tmp_path / "program.py")


def test_json_is_one_object_with_outcome_stdout_and_error_text(tmp_path, capsys):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    program = write(tmp_path, "print(search_pages('moon')[0]['title'])\nread_section('x')")
    code, out, err = run(capsys, program, "--json", "--functions", str(tmp_path / "functions.py"))
    row = json.loads(out)
    assert code == 0
    assert (row["outcome"], row["stdout"], row["host_calls"]) == ("error", "MOON\n", 2)
    assert row["error_text"].endswith("ValueError: no section x")
    assert err == "called on the host\n"


def test_without_functions_a_program_searches_an_almanac(tmp_path, capsys):
    program = write(
        tmp_path,
        "page = search_pages('river')[0]\nsection = view_sections(page['page_id'])[0]\n"
        "print(len(read_section(section['section_id'])) > 20)",
    )
    code, out, _ = run(capsys, program, "--json")
    row = json.loads(out)
    assert (code, row["outcome"], row["stdout"]) == (0, "ok", "True\n"), row


def test_for_people_it_prints_outcome_output_and_error(tmp_path, capsys):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    program = write(tmp_path, "print('[bold]said[/bold]')\n1 / 0")
    code, out, _ = run(capsys, program, "--functions", str(tmp_path / "functions.py"))
    assert code == 0
    assert out.startswith("outcome: error\n")
    assert "\nstdout:\n[bold]said[/bold]\nerror:\nTraceback (most recent call last):\n" in out
    assert out.endswith("ZeroDivisionError: division by zero\n")


def test_limits_come_from_a_recipe(tmp_path, capsys):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "recipe.toml").write_text("[env.sandbox]\nsoft_limit_s = 0.2\n")
    program = write(tmp_path, "while True: pass")
    files = ("--functions", str(tmp_path / "functions.py"), "--recipe", str(tmp_path / "recipe.toml"))
    row = json.loads(run(capsys, program, "--json", *files)[1])
    assert row["outcome"] == "timeout"
    assert "stopped after 0.2 s of processor time" in row["error_text"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere.py"], "cannot read the program nowhere.py"),
        (["{program}", "--functions", "nowhere.py"], "--functions nowhere.py: there is no such file"),
        (["{program}", "--functions", "{program}"], "defines none of search_pages, view_sections, read_section"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(tmp_path, capsys, words, problem):
    program = write(tmp_path, "x = 1")
    code, out, err = run(capsys, *(word.format(program=program) for word in words))
    assert (code, out) == (1, "")
    assert problem in err
