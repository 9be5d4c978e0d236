"""Tables of results in Markdown, in LaTeX, for the terminal and for the page."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from seekling.errors import DataError
from seekling.evaluate.intervals import Difference, Rate, format_difference, format_mean, format_rate
from seekling.evaluate.result_files import read_records
from seekling.evaluate.worsening import describe_worsening
from seekling.report.read import read_run
from seekling.report.results import Cell, Table, policies_of
from seekling.report.tables import tables_of
from seekling.types import Json

_MARKDOWN = re.compile(r"([\\`*_<>|~#]|(?<=\])[(\[])")
"""Brackets are left alone unless they would make a link: every interval has them."""
_LATEX = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "|": r"\textbar{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", '"': r"\textquotedbl{}"},
    # At the beginning of a cell a bracket would be taken for an argument of the line break before it.
    **{"[": "{[}", "]": "{]}"},
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def cell_text(cell: Cell) -> str:
    """A cell for people: figures with k/n and interval, a dash where there is none."""
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if isinstance(cell, Difference):
        return format_difference(cell)
    return format_rate(cell) if isinstance(cell, Rate) else format_mean(cell)


def to_markdown(table: Table) -> str:
    """The table in GitHub's Markdown; what could be read as markup is escaped."""
    lines = ["| " + " | ".join(map(_markdown, row)) + " |" for row in _texts(table)]
    lines.insert(1, "|" + "---|" * len(table.header))
    if table.notes:
        lines += ["", *(f"- {_markdown(note)}" for note in table.notes)]
    return "\n".join([f"**{_markdown(table.title)}**", "", *lines]) + "\n"


def to_latex(table: Table) -> str:
    r"""The table as a LaTeX float that needs `\usepackage{booktabs}`; everything in it is escaped."""
    header, *rows = ["    " + " & ".join(map(escape_latex, row)) + r" \\" for row in _texts(table)]
    lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{escape_latex(table.title)}}}"]
    lines += [f"  \\label{{tab:{table.label}}}", f"  \\begin{{tabular}}{{{'l' * len(table.header)}}}", r"    \toprule"]
    lines += [header, r"    \midrule", *rows, r"    \bottomrule", r"  \end{tabular}"]
    lines += [f"  \\par\\footnotesize {escape_latex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _texts(table: Table) -> list[list[str]]:
    """The header and the rows."""
    return [list(table.header), *([cell_text(cell) for cell in row] for row in table.rows)]


def escape_latex(text: str) -> str:
    """A text as LaTeX sets it: none of its characters is a command, white space is single."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def to_json(table: Table) -> dict[str, Json]:
    """The table for the page: figures as objects with a text, everything else as text."""
    rows: list[Json] = [[_json_cell(cell) for cell in row] for row in table.rows]
    return asdict(table) | {"rows": rows}


def print_tables(tables: Sequence[Table], warnings: Sequence[str] = ()) -> None:
    """Print tables to the terminal, intervals below their figures, so that they stay narrow; then each note once."""
    console = Console(highlight=False)
    for table in tables:
        header, *rows = _texts(table)
        if len(rows) == 1 and len(header) > 2:  # reads better from top to bottom
            header, rows = ["", rows[0][0]], [list(pair) for pair in zip(header[1:], rows[0][1:], strict=True)]
        else:
            rows = [[re.sub(r" (?:= )?(?=\d+\.\d % \[|\[)", "\n", text) for text in row] for row in rows]
        drawn = RichTable(title=Text(table.title), box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in header:
            drawn.add_column(Text(name), min_width=max(map(len, name.split()), default=0))
        for row in rows:
            drawn.add_row(*map(Text, row))
        console.print(drawn)
    for sentence in warnings:
        console.print(f"warning: {sentence}", markup=False, style="yellow", soft_wrap=True)
    for note in dict.fromkeys(note for table in tables for note in table.notes):
        console.print(note, markup=False, soft_wrap=True)


def print_results(folder: Path, names: Collection[str] | None = None) -> None:
    """Print what a run reached, what a stage changed and what it made worse; `names` None shows all evaluations."""
    run = read_run(folder, has_episodes=False)
    policies = [each for each in policies_of([run]) if names is None or each.name in names]
    tables = tables_of(policies, ("results", "sources", "costs", *(["changes"] if len(policies) > 1 else [])))
    files = [folder / "episodes" / f"eval-{each.name}.jsonl" for each in policies]
    records = (record for file in files if file.is_file() for record in read_records(file))
    try:
        warnings = describe_worsening(records)
    except DataError as error:
        warnings = [f"the evaluations cannot be compared: {error}"]
    print_tables(tables, warnings)


def _json_cell(cell: Cell) -> Json:
    return cell if cell is None or isinstance(cell, str) else {**asdict(cell), "text": cell_text(cell)}


def _one_line(text: str) -> str:
    return " ".join(_CONTROL.sub(" ", text).split())


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", _one_line(text))
