"""Result tables as text: what runs scored, did and got wrong, for a README or a paper.

Every figure comes from the summaries in `eval/*.json`, with k/n and its interval. Rows whose questions differ are never
comparable, so a table that holds such rows says so below itself.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seekling.config import EVALUATIONS, ExpectedConfig
from seekling.errors import DataError
from seekling.evaluate.behaviour_rates import behaviour_rates, error_causes
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.files import read_records, read_summary
from seekling.evaluate.intervals import Rate, format_difference, format_mean, format_rate
from seekling.evaluate.pooled import Pooled, PooledRate, pooled_gains, read_pooled
from seekling.evaluate.recovery import RecoverySummary
from seekling.evaluate.summary import EvalSummary

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
    folder: Path


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
            found.append(EvaluatedPolicy(own_name, _POLICIES.get(name, name), summary, run))
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


def cost_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """What a question costs on average, in every unit that was recorded."""
    columns: dict[str, Callable[[EvalSummary], str]] = {
        "searches": lambda summary: _number(summary.searches_per_question),
        "turns": lambda summary: _number(summary.turns_per_question),
        "tokens written": lambda summary: _number(summary.action_tokens_per_question),
        "tokens of observations": lambda summary: _number(summary.observation_tokens_per_question),
        "tokens of prompts": lambda summary: _number(summary.prompt_tokens_per_question),
        "seconds": lambda summary: _number(summary.wall_seconds_per_question),
        "seconds of an episode": lambda summary: _number(summary.seconds_per_question),
        "dollars": lambda s: "-" if s.dollars_per_question is None else f"{s.dollars_per_question:.6f}",
        "dollars in all": lambda s: "-" if s.dollars_total is None else f"{s.dollars_total:.4f}",
    }
    rows = [[make(each.summary) for make in columns.values()] for each in policies]
    return _table("Cost of a question", tuple(columns), rows, policies, label="costs")


def samples_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """Several samples of each question, and several seeds of one system: mean, pass@k, majority vote.

    Raises:
        DataError: there are neither; says what could not be put together.
    """
    folders = {each.folder: each.run for each in policies}
    found, problems = read_pooled(list(folders))
    if not found:
        said = " ".join(problems) or "expected `seekling eval --samples N`, or runs that differ in their seed alone"
        raise DataError(f"these runs hold neither several samples nor several seeds: {said}")
    names = list(folders.values())
    ks = sorted({k for each in found for k in each.summary.pass_at_k})
    header = ("run", "policy", "of", "questions", "EM, mean", "EM of each", "deviation", "F1, mean")
    rows = tuple(_samples_row(each, names, ks) for each in found)
    notes = ("95 % intervals over questions; samples of one question are not independent.", *problems)
    columns = (*header, *(f"pass@{k}" for k in ks), "majority vote, EM", "left out")
    return TextTable("Several samples or seeds", columns, rows, notes, "samples")


def _samples_row(each: Pooled, names: Sequence[str], ks: Sequence[int]) -> tuple[str, ...]:
    summary = each.summary
    return (
        ", ".join(names[number] for number in each.runs),
        _POLICIES.get(each.policy, each.policy),
        f"seeds {', '.join(map(str, each.seeds))}" if each.seeds else f"{summary.num_samples} samples",
        str(summary.num_questions),
        format_mean(summary.em_mean),
        ", ".join(f"{rate.k}/{rate.n}" for rate in summary.em_per_sample),
        "-" if summary.em_deviation is None else f"{100 * summary.em_deviation:.1f} points",
        format_mean(summary.f1_mean),
        *(format_mean(summary.pass_at_k[k]) if k in summary.pass_at_k else "-" for k in ks),
        format_rate(summary.majority),
        str(summary.num_excluded),
    )


def gains_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """What RL changed over SFT, with the seeds of a system put together, for each kind of question.

    Raises:
        DataError: no run has both evaluations; says what could not be compared.
    """
    folders = {each.folder: each.run for each in policies}
    found, problems = pooled_gains(list(folders))
    if not found:
        raise DataError(" ".join(problems) or "these runs hold no evaluations of SFT and of SFT+RL to compare")
    names = list(folders.values())
    rows = tuple(
        (
            ", ".join(names[number] for number in each.runs),
            each.kind or "all",
            _pooled_rate(each.first),
            _pooled_rate(each.second),
            format_difference(each.difference),
        )
        for each in found
    )
    header = ("runs", "kind", _POLICIES["sft"], _POLICIES["rl"], "difference")
    notes = (
        "k/n over all seeds; 95 % intervals over questions, which are the clusters: of rates Wilson's, of differences "
        "those of the paired t test that gives p.",
        *problems,
    )
    return TextTable("SFT+RL against SFT", header, rows, notes, "gains")


def _pooled_rate(rate: PooledRate) -> str:
    return f"{rate.k}/{rate.n} = {format_mean(rate.mean)}"


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


def recovery_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """What policies do when a search fails, and when there is nothing to find."""
    _require([each for each in policies if each.summary.recovery is not None], "recovery")
    rows = [
        tuple(format_rate(rate) if rate is not None else "-" for rate in _recovery_rates(each.summary.recovery))
        for each in policies
    ]
    columns = (
        "recovered from a failed search",
        "invented an answer",
        "unknown though answerable",
        "stopped when it was shown",
        "went on when it was not",
    )
    return _table("Recovery", columns, rows, policies, label="recovery")


def _recovery_rates(found: RecoverySummary | None) -> tuple[Rate | None, ...]:
    if found is None:
        return (None,) * 5
    return (
        found.recovered,
        found.false_answers,
        found.false_unknowns,
        found.stopped_when_shown,
        found.went_on_when_not,
    )


def confidence_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """What a promised precision keeps on test questions, and how well confidence ranks answers."""
    _require([each for each in policies if each.summary.confidence is not None], "confidence")
    rows = []
    for each in policies:
        found = each.summary.confidence
        if found is None:
            rows.append(("-",) * 4)
            continue
        promised, area = f"{100 * found.promised_precision:.0f} %", "-"
        if found.aurc is not None:
            area = f"{found.aurc:.3f} up to {100 * found.curve[-1][0]:.0f} %"
        rows.append((promised, format_rate(found.right_of_shown), format_rate(found.shown), area))
    columns = ("promised", "right of the answers shown", "answers shown", "area under risk-coverage")
    return _table("Confidence", columns, rows, policies, label="confidence")


def expected_table(policies: Sequence[EvaluatedPolicy]) -> TextTable:
    """What the recipes of runs expect, from their `[expected]` blocks, beside what the runs reached.

    Raises:
        DataError: no run's recipe expects anything, or a recipe cannot be read.
    """
    rows: list[tuple[str, ...]] = []
    for folder in dict.fromkeys(each.folder for each in policies):
        mine = {each.policy: each for each in policies if each.folder == folder}
        after = mine.get(_POLICIES["rl"], mine.get(_POLICIES["sft"]))
        expected = _expected(folder)
        for number, metric in enumerate(expected.metrics):
            rows.append(
                (
                    next(iter(mine.values())).run,
                    metric,
                    f"{100 * expected.before[number]:.1f} %" if expected.before else "-",
                    _reached(mine.get(_POLICIES["base"]), metric),
                    f"{100 * expected.values[number]:.1f} %",
                    _reached(after, metric),
                    expected.source,
                )
            )
    if not rows:
        raise DataError("none of these runs' recipes has an [expected] block; the full-size recipes have one")
    header = ("run", "figure", "expected before", "before", "expected after", "after", "source of the expectation")
    notes = ("Before is the untrained model, after the last stage that was evaluated. A dash is a figure nobody has.",)
    return TextTable("Expected and reached", header, tuple(rows), notes, label="expected")


def _expected(folder: Path) -> ExpectedConfig:
    recipe = folder / "recipe.toml"
    try:
        block = tomllib.loads(recipe.read_text(encoding="utf-8")).get("expected", {})
        return ExpectedConfig.model_validate(block)
    except (OSError, ValueError) as error:  # not TOML, and not what the block is, are ValueErrors
        raise DataError(f"{recipe} cannot be read ({error}); expected the recipe that `seekling train` wrote") from None


def _reached(policy: EvaluatedPolicy | None, metric: str) -> str:
    """Our figure of `benchmark/measure`, from the questions of that data set alone."""
    benchmark, _, measure = metric.partition("/")
    group = policy.summary.by_source.get(benchmark) if policy is not None else None
    if group is None:
        return "-"
    rates = {"em": group.em, "substring": group.substring, "judge": group.judge}
    means = {"f1": group.f1, "rouge_l": group.rouge_l}
    rate, mean = rates.get(measure), means.get(measure)
    return format_rate(rate) if rate is not None else format_mean(mean) if mean is not None else "-"


TABLES: Mapping[str, Callable[[Sequence[EvaluatedPolicy]], TextTable]] = {
    "results": result_table,
    "behaviours": behaviour_table,
    "errors": error_table,
    "recovery": recovery_table,
    "confidence": confidence_table,
    "expected": expected_table,
    "costs": cost_table,
    "samples": samples_table,
    "gains": gains_table,
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
