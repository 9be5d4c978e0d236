"""Result tables as Markdown."""

import json
import re

import pytest

from seekling.cli.main import main
from seekling.config import ExpectedConfig, Recipe, recipe_to_toml
from seekling.errors import DataError
from seekling.report.formats import cell_text, escape_latex, print_results, to_json, to_latex, to_markdown
from seekling.report.results import Table, read_policies
from seekling.report.tables import TABLES
from tests.evaluate.episodes import write_evaluations
from tests.report.run_folder import write_run as write_run_folder


@pytest.fixture
def run(tmp_path):
    return write_evaluations(tmp_path / "a_run", rl="rrrw", base="wwwf")


def table_of(name, *runs):
    return TABLES[name](read_policies(runs)[0])


def texts(table):
    return [tuple(map(cell_text, row)) for row in table.rows]


def test_results_are_in_the_order_of_training_with_counts_and_exclusions(run):
    table = table_of("results", run)
    assert table.header[:2] == ("policy", "EM")
    rows = texts(table)
    assert [row[0] for row in rows] == ["base", "SFT+RL"]
    assert rows[0][1] == "0/3 = 0.0 % [0.0, 56.1]"
    assert rows[1][1] == "3/4 = 75.0 % [30.1, 95.4]"
    assert rows[0][-1] == "1 infra failure"
    assert table.stages == ("eval-base", "eval-rl")
    assert "Decoding: greedy." in table.notes


def test_recovery_and_confidence_have_a_row_for_each_policy(run, tmp_path):
    table = table_of("recovery", run)
    assert [row[0] for row in table.rows] == ["base", "SFT+RL"]
    row = dict(zip(table.header, texts(table)[1], strict=True))
    assert row["unknown though answerable"].startswith("0/4 = 0.0 %")
    table = table_of("confidence", write_run_folder(tmp_path / "other", questions=100, steps=2))
    rows = [dict(zip(table.header, row, strict=True)) for row in texts(table) if row[1] != "-"]
    assert {row["promised"] for row in rows} == {"80 %"}
    assert all(re.match(r"\d+/\d+ = ", row["answers shown"]) for row in rows)
    assert all(0 <= float(row["area under risk-coverage"].split()[0]) <= 1 for row in rows)


def test_what_a_recipe_expects_stands_beside_what_the_run_reached(tmp_path):
    folder = write_evaluations(tmp_path / "a_run", source="nq", base="wwww", rl="rrrw")
    expected = ExpectedConfig(metrics=("nq/em", "hotpotqa/em"), values=(0.4576, 0.3381), source="a blog post")
    (folder / "recipe.toml").write_text(recipe_to_toml(Recipe(expected=expected)), encoding="utf-8")
    table = table_of("expected", folder)
    assert texts(table) == [
        ("a_run", "nq/em", "-", "0/4 = 0.0 % [0.0, 49.0]", "45.8 %", "3/4 = 75.0 % [30.1, 95.4]", "a blog post"),
        ("a_run", "hotpotqa/em", "-", "-", "33.8 %", "-", "a blog post"),
    ]
    (folder / "recipe.toml").write_text(recipe_to_toml(Recipe()), encoding="utf-8")
    with pytest.raises(DataError, match=r"none of these runs' recipes has an \[expected\] block"):
        table_of("expected", folder)


def test_seeds_and_samples_have_a_table_with_pass_at_k(run, tmp_path):
    other = write_evaluations(tmp_path / "other", rl="rrww")
    for seed, folder in enumerate((run, other)):
        (folder / "recipe.toml").write_text(f"seed = {seed}\n", encoding="utf-8")
    table = table_of("samples", run, other)
    row = dict(zip(table.header, texts(table)[0], strict=True))
    assert (row["run"], row["policy"], row["of"], row["EM of each"]) == (
        "a_run, other",
        "SFT+RL",
        "seeds 0, 1",
        "3/4, 2/4",
    )
    assert row["pass@2"].startswith("75.0 %")
    with pytest.raises(DataError, match="neither several samples nor several seeds"):
        table_of("samples", run)


def test_markdown_escapes_what_could_be_markup_and_leaves_intervals_readable(run):
    text = to_markdown(table_of("results", run))
    assert "| SFT+RL | 3/4 = 75.0 % [30.1, 95.4] |" in text
    evil = Table("evil", "t", ("a|b", "c"), (("<script>", "[x](http://y)\n# z"),), ("`n`",))
    assert to_markdown(evil) == (
        "**t**\n\n| a\\|b | c |\n|---|---|\n| \\<script\\> | [x]\\(http://y) \\# z |\n\n- \\`n\\`\n"
    )


def test_latex_escapes_every_character_that_means_something():
    assert escape_latex("a_b & 5 % $x^2$ #1 {~} \\input{/etc/passwd}\n[2]") == (
        r"a\_b \& 5 \% \$x\textasciicircum{}2\$ \#1 \{\textasciitilde{}\} "
        r"\textbackslash{}input\{/etc/passwd\} {[}2{]}"
    )


def test_a_latex_table_has_one_column_per_header_and_one_line_per_row(run):
    text = to_latex(table_of("results", run))
    assert text.startswith("\\begin{table}\n  \\centering\n  \\caption{Held-out questions}\n  \\label{tab:results}\n")
    assert "\\begin{tabular}{lllllllll}" in text
    body = text.partition("\\midrule\n")[2].partition("    \\bottomrule")[0].splitlines()
    assert [line.count(" & ") for line in body] == [8, 8]
    assert all(line.endswith(r" \\") for line in body)
    assert body[1].startswith(r"    SFT+RL & 3/4 = 75.0 \% {[}30.1, 95.4{]} & ")


def test_runs_that_asked_different_questions_are_not_shown_as_comparable(tmp_path, run):
    table = table_of("results", run, write_evaluations(tmp_path / "other", rl="rw"))
    assert [row[:2] for row in table.rows] == [("a_run", "base"), ("a_run", "SFT+RL"), ("other", "SFT+RL")]
    assert "Different questions were asked: rows of different sets cannot be compared." in table.notes


def test_causes_of_errors_sum_to_all_that_is_not_right(run):
    table = table_of("errors", run)
    assert table.header == ("cause", "base", "SFT+RL")
    columns = [[int(row[column]) for row in texts(table)] for column in (1, 2)]
    assert [sum(column[:-1]) for column in columns] == [column[-1] for column in columns] == [4, 1]


def test_changes_kinds_and_all_figures_come_from_the_same_summaries(tmp_path):
    run = write_run_folder(tmp_path / "a_run", questions=40, steps=2)
    policies = read_policies([run])[0]
    assert [row[0] for row in TABLES["changes"](policies).rows] == ["SFT → SFT+RL", "base → SFT", "base → SFT+RL"]
    changed = json.loads((run / "eval" / "compare-sft-rl.json").read_text(encoding="utf-8"))
    assert TABLES["changes"](policies).rows[0][2:4] == (str(changed["num_wins"]), str(changed["num_losses"]))
    em = policies[-1].summary.em
    of_kinds = [row[2] for row in TABLES["kinds"](policies).rows if row[0] == "SFT+RL" and ":" not in row[1]]
    assert (sum(rate.k for rate in of_kinds), sum(rate.n for rate in of_kinds)) == (em.k, em.n)
    assert em in [row[-1] for row in TABLES["figures"](policies).rows]
    cell = to_json(TABLES["results"](policies))["rows"][-1][1]
    assert (cell["k"], cell["n"], cell["text"]) == (em.k, em.n, cell_text(em))


def test_the_terminal_shows_the_same_tables_and_each_note_once(run, capsys):
    print_results(run)
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("Held-out questions", "SFT+RL", "3/4", "1 infra", "Cost of a question", "13.50"):
        assert words in shown
    assert shown.count("Decoding: greedy.") == 1


def test_a_run_without_evaluations_is_refused(tmp_path):
    (tmp_path / "eval").mkdir()
    with pytest.raises(DataError, match="Run `seekling train` or `seekling eval` first"):
        read_policies([tmp_path])


def test_the_command_prints_or_writes(capsys, run, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--table", str(run), "--show", "results", "--show", "errors"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("**") == 4
    with pytest.raises(SystemExit):
        main(["report", "--table", str(run), "--out", str(tmp_path / "new" / "t.md")])
    assert (tmp_path / "new" / "t.md").read_text(encoding="utf-8").startswith("**Held-out questions**")


def test_an_unknown_table_is_refused(capsys, run):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--table", str(run), "--show", "bars"])
    assert ended.value.code == 1
    assert "choose" in capsys.readouterr().err
