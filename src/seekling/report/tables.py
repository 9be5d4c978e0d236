"""Result tables as text: what runs scored, did and got wrong, for a README or a paper.

Every figure comes from the summaries in `eval/*.json`, with k/n and its interval. Rows whose questions differ are never
comparable, so a table that holds such rows says so below itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seekling.errors import DataError
from seekling.evaluate.behaviour_rates import behaviour_rates, error_causes
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.files import read_records, read_summary
from seekling.evaluate.intervals import format_mean, format_rate
from seekling.evaluate.summary import EvalSummary
from seekling.report.read import EVALUATIONS

_POLICIES = {"base": "base", "sft": "SFT", "rl": "SFT+RL"}
_MARKDOWN = re.compile(r"([\\`*_<>|~#]|(?<=\])[(\[])")
"""Brackets are left alone unless they would make a link: every interval has them."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # At the beginning of a cell a bracket would be taken for an argument of the line break before it.
    "[": "{[}",
    "]": "{]}",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table before it is written in any format."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    label: str = "results"
    """For references in LaTeX."""


@dataclass(frozen=True, slots=True)
class EvaluatedPolicy:
    """One row's source: a policy of a run, and its summary."""

    run: str
    policy: str
    summary: EvalSummary


def read_policies(runs: Sequence[Path]) -> tuple[list[EvaluatedPolicy], list[str]]:
    """Every evaluation of some runs, in the order of training.

    Returns:
        The evaluations, and a sentence for each that cannot be read.

    Raises:
        DataError: not one evaluation is there.
    """
    found: list[EvaluatedPolicy] = []
    problems: list[str] = []
    folders = Counter(run.resolve().name for run in runs)
    for run in runs:
        own_name = run.resolve().name if folders[run.resolve().name] == 1 else str(run)
        names = [file.stem for file in (run / "eval").glob("*.json") if not file.stem.startswith("compare-")]
        if not names:
            problems.append(f"{run} holds no evaluation; expected {run}/eval/<name>.json")
        for name in sorted(names, key=lambda name: (EVALUATIONS.index(name) if name in EVALUATIONS else 9, name)):
            try:
                summary = read_summary(run / "eval" / f"{name}.json")
            except DataError as error:
                problems.append(str(error))
                continue
            summary = _with_behaviours(summary, run / "episodes" / f"eval-{name}.jsonl")
            found.append(EvaluatedPolicy(own_name, _POLICIES.get(name, name), summary))
    if not found:
        raise DataError("; ".join(problems) + "; run `seekling train` or `seekling eval` first")
    return found, problems


def _with_behaviours(summary: EvalSummary, episodes: Path) -> EvalSummary:
    """The summary as this version writes it, where an older one left behaviours out and the episodes are there."""
    if summary.behaviours or not episodes.is_file():
        return summary
    try:
        records = list(read_records(episodes))
    except DataError:
        return summary
    return replace(summary, behaviours=behaviour_rates(records), error_causes=error_causes(records))


def result_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """Scores, and what they cost in searches and turns."""
    has_judge = any(each.summary.judge is not None for each in policies)
    columns: dict[str, Callable[[EvalSummary], str]] = {
        "EM": lambda summary: format_rate(summary.em),
        "F1": lambda summary: format_mean(summary.f1),
        "ROUGE-L": lambda summary: format_mean(summary.rouge_l) if summary.rouge_l is not None else "-",
        **({"judge": lambda s: format_rate(s.judge) if s.judge is not None else "-"} if has_judge else {}),
        "gold page found": lambda summary: format_rate(summary.gold_retrieved),
        "searches": lambda summary: _number(summary.searches_per_question),
        "turns": lambda summary: _number(summary.turns_per_question),
        "left out": lambda summary: ", ".join(f"{n} {cause}" for cause, n in summary.exclusions.items()) or "0",
    }
    rows = [[make(each.summary) for make in columns.values()] for each in policies]
    return _table("Results", tuple(columns), rows, policies, label="results")


def behaviour_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """How often each behaviour was seen; one row per behaviour, one column per policy."""
    seen = [name for name in BEHAVIOURS if any(name in each.summary.behaviours for each in policies)]
    _require(seen, "behaviours")
    rows = [
        (name, *(format_rate(rates[name]) if name in (rates := each.summary.behaviours) else "-" for each in policies))
        for name in seen
    ]
    return TextTable("Behaviours", ("behaviour", *_names(policies)), tuple(rows), _notes(policies), "behaviours")


def error_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """Why episodes are not right; every column sums to all that are not."""
    _require([each for each in policies if each.summary.error_causes], "error_causes")
    rows = [(cause, *(_count(each.summary.error_causes, cause) for each in policies)) for cause in ERROR_CAUSES]
    total = ("all that is not right", *(_total(each.summary.error_causes) for each in policies))
    return TextTable("Causes of errors", ("cause", *_names(policies)), (*rows, total), _notes(policies), "errors")


def published_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """What others published on the same benchmarks, and why each figure is comparable with ours or not."""
    rows = [
        (
            *_where(each, policies),
            beside.figure.benchmark,
            f"{beside.figure.system} ({beside.figure.model})",
            beside.figure.metric,
            f"{100 * beside.figure.value:.1f} %",
            "-" if beside.ours is None else f"{100 * beside.ours:.1f} % (n = {beside.ours_n})",
            "comparable" if beside.is_comparable else f"no: {'; '.join(beside.reasons)}",
            beside.figure.source,
        )
        for each in policies
        for beside in each.summary.published
    ]
    header = (*_where_header(policies), "benchmark", "system", "metric", "published", "ours", "comparable", "source")
    if not rows:
        raise DataError("nothing is published on the questions of these runs; known benchmarks are nq, hotpotqa, ...")
    return TextTable("Published figures", header, tuple(rows), label="published")


TABLES: Mapping[str, Callable[[Sequence[EvaluatedPolicy]], TextTable]] = {
    "results": result_table,
    "behaviours": behaviour_table,
    "errors": error_table,
    "published": published_table,
}


def to_markdown(table: TextTable) -> str:
    """The table in GitHub's Markdown; what could be read as markup is escaped."""
    lines = [f"**{_markdown(table.title)}**", ""]
    lines += [_markdown_row(table.header), "|" + "---|" * len(table.header)]
    lines += [_markdown_row(row) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def to_latex(table: TextTable) -> str:
    r"""The table as a LaTeX float that needs `\usepackage{booktabs}`; everything in it is escaped."""
    lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{escape_latex(table.title)}}}"]
    lines += [f"  \\label{{tab:{table.label}}}", f"  \\begin{{tabular}}{{{'l' * len(table.header)}}}", r"    \toprule"]
    lines += [_latex_row(table.header), r"    \midrule", *map(_latex_row, table.rows)]
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    lines += [f"  \\par\\footnotesize {escape_latex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape_latex(text: str) -> str:
    """A text as LaTeX sets it: none of its characters is a command, white space is single."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], policies: Sequence[EvaluatedPolicy], label: str
) -> TextTable:
    filled = tuple((*_where(each, policies), *row) for each, row in zip(policies, rows, strict=True))
    return TextTable(title, (*_where_header(policies), *columns), filled, _notes(policies), label)


def _where_header(policies: Sequence[EvaluatedPolicy]) -> tuple[str, ...]:
    return ("run", "policy") if _has_several_runs(policies) else ("policy",)


def _where(each: EvaluatedPolicy, policies: Sequence[EvaluatedPolicy]) -> tuple[str, ...]:
    return (each.run, each.policy) if _has_several_runs(policies) else (each.policy,)


def _names(policies: Sequence[EvaluatedPolicy]) -> list[str]:
    return [" ".join(_where(each, policies)) for each in policies]


def _has_several_runs(policies: Sequence[EvaluatedPolicy]) -> bool:
    return len({each.run for each in policies}) > 1


def _notes(policies: Sequence[EvaluatedPolicy]) -> tuple[str, ...]:
    sets = dict.fromkeys((each.summary.question_set_hash, each.summary.num_questions) for each in policies)
    decoding = {each.summary.temperatures for each in policies}
    notes = ["k/n with 95 % Wilson intervals; episodes left out are in no figure."]
    notes.append("Questions: " + ", ".join(f"{number} (set {digest[:12]})" for digest, number in sets) + ".")
    if len(sets) > 1:
        notes.append("Different questions were asked: rows of different sets cannot be compared.")
    shown = ["greedy" if each == (0.0,) else f"temperature {', '.join(map(str, each))}" for each in sorted(decoding)]
    notes.append("Decoding: " + "; ".join(shown) + ".")
    return tuple(notes)


def _require(found: Sequence[object], what: str) -> None:
    if not found:
        raise DataError(f"these evaluations hold no {what}: an older version wrote them; evaluate again to add them")


def _count(causes: Mapping[str, int], cause: str) -> str:
    return str(causes.get(cause, 0)) if causes else "-"


def _total(causes: Mapping[str, int]) -> str:
    return str(sum(causes.values())) if causes else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _one_line(text: str) -> str:
    return " ".join(_CONTROL.sub(" ", text).split())


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _latex_row(cells: Sequence[str]) -> str:
    return "    " + " & ".join(map(escape_latex, cells)) + r" \\"
