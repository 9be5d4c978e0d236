"""The tables of results: what evaluated policies scored, cost, changed, did and got wrong.

Every figure comes from the summaries in `eval/*.json`. Rows whose questions differ are never comparable, so a table
that holds such rows says so below itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from seekling.config import ExpectedConfig
from seekling.errors import DataError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.compare import PairedComparison
from seekling.evaluate.intervals import Mean, Rate
from seekling.evaluate.recovery import RecoverySummary
from seekling.evaluate.samples import SampleSummary
from seekling.evaluate.summary import EvalSummary, GroupSummary
from seekling.report.pooled import pooled_gains, read_pooled
from seekling.report.read import RunFolder
from seekling.report.results import POLICIES, Cell, Policy, Table

CHANGES = (("eval-sft", "eval-rl"), ("eval-base", "eval-sft"), ("eval-base", "eval-rl"))
"""Comparisons that are shown, in this order."""


def result_table(policies: Sequence[Policy]) -> Table:
    """Scores, what they cost in searches and turns, and everything that must be known before anyone quotes them."""
    columns: dict[str, Callable[[EvalSummary], Cell]] = {
        "EM": lambda summary: summary.em,
        "F1": lambda summary: summary.f1,
        "ROUGE-L": lambda summary: summary.rouge_l,
        "judge": lambda summary: summary.judge,
        "answered": lambda summary: summary.answered,
        "gold page found": lambda summary: summary.gold_retrieved,
        "searches": lambda summary: _number(summary.searches_per_question),
        "turns": lambda summary: _number(summary.turns_per_question),
        "left out": lambda s: ", ".join(f"{n} {cause.replace('_', ' ')}" for cause, n in s.exclusions.items()) or None,
    }
    return _table("results", "Held-out questions", columns, policies, _notes(policies) + _conditions(policies))


def source_table(policies: Sequence[Policy]) -> Table:
    """The scores per data set."""
    if not any(len(each.summary.by_source) > 1 for each in policies):
        raise DataError("the questions of these runs are of one data set")
    return _group_table("sources", "data set", policies, lambda summary: summary.by_source)


def kind_table(policies: Sequence[Policy]) -> Table:
    """The scores per kind of question."""
    if len({kind for each in policies for kind in each.summary.by_kind}) < 2:
        raise DataError("the questions of these runs are of one kind")
    return _group_table("kinds", "kind", policies, lambda summary: summary.by_kind)


def _group_table(
    label: str, what: str, policies: Sequence[Policy], groups_of: Callable[[EvalSummary], Mapping[str, GroupSummary]]
) -> Table:
    has_run = _has_several_runs(policies)
    rows: list[tuple[Cell, ...]] = []
    stages = []
    for name in dict.fromkeys(name for each in policies for name in groups_of(each.summary)):
        for each in policies:
            group = groups_of(each.summary).get(name)
            if group is not None:
                scores = (group.em, group.f1, group.substring, group.rouge_l, group.judge, group.gold_retrieved)
                rows.append((*_where(each, has_run), name or "(none)", *scores))
                stages.append(f"eval-{each.name}")
    header = (*_where_header(has_run), what, "EM", "F1", "substring", "ROUGE-L", "judge", "gold page found")
    return Table(label, f"By {what}", header, tuple(rows), _notes(policies), tuple(stages)).without_empty()


def cost_table(policies: Sequence[Policy]) -> Table:
    """What a question costs on average, in every unit that was recorded."""
    columns: dict[str, Callable[[EvalSummary], Cell]] = {
        "searches": lambda summary: _number(summary.searches_per_question),
        "turns": lambda summary: _number(summary.turns_per_question),
        "tokens written": lambda summary: _number(summary.action_tokens_per_question),
        "guessed ahead per token": lambda summary: _number(summary.drafted_per_token),
        "guessed right": lambda s: None if s.draft_acceptance is None else f"{100 * s.draft_acceptance:.0f} %",
        "tokens of observations": lambda summary: _number(summary.observation_tokens_per_question),
        "tokens of prompts": lambda summary: _number(summary.prompt_tokens_per_question),
        "seconds": lambda summary: _number(summary.wall_seconds_per_question),
        "seconds of an episode": lambda summary: _number(summary.seconds_per_question),
        "dollars": lambda s: None if s.dollars_per_question is None else f"{s.dollars_per_question:.6f}",
        "dollars in all": lambda s: None if s.dollars_total is None else f"{s.dollars_total:.4f}",
    }
    return _table("costs", "Cost of a question", columns, policies, _notes(policies))


def change_table(policies: Sequence[Policy]) -> Table:
    """What each stage of a run changed, question by question.

    Raises:
        DataError: no two stages were compared.
    """
    runs = _runs(policies)
    found = [(place, each) for place, run in runs.items() for each in changes_of(run)]
    if not found:
        raise DataError("no two stages of these runs were compared; `seekling report RUN` compares them")
    rows: list[tuple[Cell, ...]] = [
        (
            *([place] if len(runs) > 1 else []),
            " → ".join(POLICIES[name.removeprefix("eval-")] for name in (each.first, each.second)),
            each.em_difference,
            *map(str, (each.num_wins, each.num_losses, each.num_both, each.num_neither, each.num_questions)),
        )
        for place, each in found
    ]
    header = (*(["run"] if len(runs) > 1 else []), "change", "EM", "won", "lost", "both right", "neither", "n")
    notes = (
        "Exact match, second minus first, question by question: a paired t test over the questions that both scored; "
        "interval and p are of the same test.",
    )
    return Table("changes", "What each stage changed", header, tuple(rows), notes)


def changes_of(run: RunFolder) -> list[PairedComparison]:
    """The comparisons of a run's stages that are shown, in their order."""
    pairs = {(each.first, each.second): each for each in run.comparisons}
    return [pairs[pair] for pair in CHANGES if pair in pairs]


def samples_table(policies: Sequence[Policy]) -> Table:
    """Several samples of each question, and several seeds of one system: mean, pass@k, majority vote.

    Raises:
        DataError: there are neither. What could not be put together is among the notes.
    """
    runs = _runs(policies)
    found, problems = read_pooled(list(runs.values()))
    if not found and not problems:
        raise DataError(
            "these runs hold neither several samples nor several seeds: expected `seekling eval --samples N`, or runs "
            "that differ in their seed alone"
        )
    names = list(runs)
    return pooled_table(
        [
            (
                ", ".join(names[number] for number in each.runs),
                POLICIES.get(each.policy, each.policy),
                f"seeds {', '.join(map(str, each.seeds))}" if each.seeds else f"{each.summary.num_samples} samples",
                each.summary,
            )
            for each in found
        ],
        problems,
    )


def pooled_table(pooled: Sequence[tuple[str, str, str, SampleSummary]], problems: Sequence[str] = ()) -> Table:
    """Several evaluations of the same questions as one: a row for each (runs, policy, of what, figures)."""
    ks = sorted({k for *_, summary in pooled for k in summary.pass_at_k})
    header = ("run", "policy", "of", "questions", "EM, mean", "EM of each", "deviation", "F1, mean")
    rows = tuple(
        (
            *words,
            str(summary.num_questions),
            summary.em_mean,
            ", ".join(f"{rate.k}/{rate.n}" for rate in summary.em_per_sample),
            None if summary.em_deviation is None else f"{100 * summary.em_deviation:.1f} points",
            summary.f1_mean,
            *(summary.pass_at_k.get(k) for k in ks),
            summary.majority,
            str(summary.num_excluded),
        )
        for *words, summary in pooled
    )
    notes = (
        "95 % intervals over questions: samples of one question are not independent. pass@k is the chance that one of "
        "k is right; the majority vote is on normalised answers.",
        *problems,
    )
    columns = (*header, *(f"pass@{k}" for k in ks), "majority vote, EM", "left out")
    return Table("samples", "Several samples or seeds", columns, rows, notes)


def gains_table(policies: Sequence[Policy]) -> Table:
    """What RL changed over SFT, with the seeds of a system put together, for each kind of question.

    Raises:
        DataError: no run has both evaluations; says what could not be compared.
    """
    runs = _runs(policies)
    found, problems = pooled_gains(list(runs.values()))
    if not found:
        raise DataError(" ".join(problems) or "these runs hold no evaluations of SFT and of SFT+RL to compare")
    names = list(runs)
    rows = tuple(
        (
            ", ".join(names[number] for number in each.runs),
            each.kind or "all",
            each.first,
            each.second,
            each.difference,
        )
        for each in found
    )
    notes = (
        "k/n over all seeds; 95 % intervals over questions, which are the clusters: of rates Wilson's, of differences "
        "those of the paired t test that gives p.",
        *problems,
    )
    header = ("runs", "kind", POLICIES["sft"], POLICIES["rl"], "difference")
    return Table("gains", "SFT+RL against SFT", header, rows, notes)


def behaviour_table(policies: Sequence[Policy]) -> Table:
    """How often each behaviour was seen; one row per behaviour, one column per policy."""
    seen = [name for name in BEHAVIOURS if any(name in each.summary.behaviours for each in policies)]
    _require(seen, "behaviours")
    rows = [(name, *(each.summary.behaviours.get(name) for each in policies)) for name in seen]
    return Table("behaviours", "Behaviours", ("behaviour", *_names(policies)), tuple(rows), _notes(policies))


def error_table(policies: Sequence[Policy]) -> Table:
    """Why episodes are not right; every column sums to all that are not."""
    causes = [each.summary.error_causes for each in policies]
    _require(any(causes), "error_causes")
    rows = [(cause, *(str(each.get(cause, 0)) if each else None for each in causes)) for cause in ERROR_CAUSES]
    rows.append(("all that is not right", *(str(sum(each.values())) if each else None for each in causes)))
    return Table("errors", "Causes of errors", ("cause", *_names(policies)), tuple(rows), _notes(policies))


def recovery_table(policies: Sequence[Policy]) -> Table:
    """What policies do when a search fails, and when there is nothing to find."""
    _require(any(each.summary.recovery is not None for each in policies), "recovery")
    columns: dict[str, Callable[[EvalSummary], Cell]] = {
        "recovered from a failed search": _recovery(lambda found: found.recovered),
        "invented an answer": _recovery(lambda found: found.false_answers),
        "unknown though answerable": _recovery(lambda found: found.false_unknowns),
        "stopped when it was shown": _recovery(lambda found: found.stopped_when_shown),
        "went on when it was not": _recovery(lambda found: found.went_on_when_not),
    }
    return _table("recovery", "Recovery", columns, policies, _notes(policies))


def _recovery(rate: Callable[[RecoverySummary], Rate | None]) -> Callable[[EvalSummary], Cell]:
    return lambda summary: None if summary.recovery is None else rate(summary.recovery)


def confidence_table(policies: Sequence[Policy]) -> Table:
    """What a promised precision keeps on test questions, and how well confidence ranks answers."""
    _require(any(each.summary.confidence is not None for each in policies), "confidence")
    columns: dict[str, Callable[[EvalSummary], Cell]] = {
        "promised": lambda s: f"{100 * s.confidence.promised_precision:.0f} %" if s.confidence else None,
        "right of the answers shown": lambda s: s.confidence.right_of_shown if s.confidence else None,
        "answers shown": lambda s: s.confidence.shown if s.confidence else None,
        "area under risk-coverage": _area,
    }
    return _table("confidence", "Confidence", columns, policies, _notes(policies))


def _area(summary: EvalSummary) -> str | None:
    found = summary.confidence
    if found is None or found.aurc is None:
        return None
    return f"{found.aurc:.3f} up to {100 * found.curve[-1][0]:.0f} %"


def expected_table(policies: Sequence[Policy]) -> Table:
    """What the recipes of runs expect, from their `[expected]` blocks, beside what the runs reached.

    Raises:
        DataError: no run's recipe expects anything.
    """
    rows: list[tuple[Cell, ...]] = []
    for place, run in _runs(policies).items():
        expected = run.settings.expected if run.settings is not None else ExpectedConfig()
        after = run.evaluations.get("rl", run.evaluations.get("sft"))
        for number, metric in enumerate(expected.metrics):
            before = f"{100 * expected.before[number]:.1f} %" if expected.before else None
            reached = _reached(run.evaluations.get("base"), metric), _reached(after, metric)
            then = f"{100 * expected.values[number]:.1f} %"
            rows.append((place, metric, before, reached[0], then, reached[1], expected.source))
    if not rows:
        raise DataError("none of these runs' recipes has an [expected] block; the full-size recipes have one")
    header = ("run", "figure", "expected before", "before", "expected after", "after", "source of the expectation")
    notes = ("Before is the untrained model, after the last stage that was evaluated. A dash is a figure nobody has.",)
    return Table("expected", "Expected and reached", header, tuple(rows), notes)


def _reached(summary: EvalSummary | None, metric: str) -> Rate | Mean | None:
    """Our figure of `benchmark/measure`, from the questions of that data set alone."""
    benchmark, _, measure = metric.partition("/")
    group = summary.by_source.get(benchmark) if summary is not None else None
    if group is None:
        return None
    figures: dict[str, Rate | Mean | None] = {"em": group.em, "substring": group.substring, "judge": group.judge}
    return (figures | {"f1": group.f1, "rouge_l": group.rouge_l}).get(measure)


def figure_table(policies: Sequence[Policy]) -> Table:
    """Every figure of the summaries, whatever it is called: a rate or mean with its interval, or a number."""
    columns = [{field.name: getattr(each.summary, field.name) for field in fields(EvalSummary)} for each in policies]
    rows = []
    for field in fields(EvalSummary):
        values = [column[field.name] for column in columns]
        if any(isinstance(value, Rate | Mean | int | float) for value in values):
            rows.append((field.name.replace("_", " "), *(_any_figure(value) for value in values)))
    return Table("figures", "All figures", ("figure", *_names(policies)), tuple(rows), _notes(policies))


def _any_figure(value: object) -> Cell:
    return value if isinstance(value, Rate | Mean) else f"{value:.4g}" if isinstance(value, int | float) else None


TABLES: Mapping[str, Callable[[Sequence[Policy]], Table]] = {
    "results": result_table,
    "changes": change_table,
    "gains": gains_table,
    "samples": samples_table,
    "kinds": kind_table,
    "sources": source_table,
    "behaviours": behaviour_table,
    "errors": error_table,
    "recovery": recovery_table,
    "confidence": confidence_table,
    "expected": expected_table,
    "costs": cost_table,
    "figures": figure_table,
}


def tables_of(policies: Sequence[Policy], names: Sequence[str]) -> list[Table]:
    """Those of the named tables for which there are figures."""
    found = []
    for name in names if policies else ():
        with contextlib.suppress(DataError):  # says that there is nothing to show
            found.append(TABLES[name](policies))
    return found


def _table(
    label: str,
    title: str,
    columns: Mapping[str, Callable[[EvalSummary], Cell]],
    policies: Sequence[Policy],
    notes: tuple[str, ...],
) -> Table:
    has_run = _has_several_runs(policies)
    rows = tuple((*_where(each, has_run), *(make(each.summary) for make in columns.values())) for each in policies)
    stages = tuple(f"eval-{each.name}" for each in policies)
    return Table(label, title, (*_where_header(has_run), *columns), rows, notes, stages).without_empty()


def _runs(policies: Sequence[Policy]) -> dict[str, RunFolder]:
    return {each.place: each.run for each in policies}


def _has_several_runs(policies: Sequence[Policy]) -> bool:
    return len(_runs(policies)) > 1


def _where_header(has_run: bool) -> tuple[str, ...]:
    return ("run", "policy") if has_run else ("policy",)


def _where(each: Policy, has_run: bool) -> tuple[str, ...]:
    return (each.place, each.title) if has_run else (each.title,)


def _names(policies: Sequence[Policy]) -> list[str]:
    has_run = _has_several_runs(policies)
    return [" ".join(_where(each, has_run)) for each in policies]


def _notes(policies: Sequence[Policy]) -> tuple[str, ...]:
    """What belongs to every table of figures."""
    sets = dict.fromkeys((each.summary.question_set_hash, each.summary.num_questions) for each in policies)
    decoding = {each.summary.temperatures for each in policies}
    notes = ["k/n with 95 % Wilson intervals; episodes left out are in no figure."]
    notes.append("Questions: " + ", ".join(f"{number} (set {digest[:12]})" for digest, number in sets) + ".")
    if len(sets) > 1:
        notes.append("Different questions were asked: rows of different sets cannot be compared.")
    shown = ["greedy" if each == (0.0,) else f"temperature {', '.join(map(str, each))}" for each in sorted(decoding)]
    notes.append("Decoding: " + "; ".join(shown) + ".")
    return tuple(notes)


def _conditions(policies: Sequence[Policy]) -> tuple[str, ...]:
    """What must be known before anyone quotes the scores: settings, failures, the judge's errors, odd golds."""
    games: dict[str, list[str]] = {}
    lines: list[str] = []
    for name, summary in zip(_names(policies), (each.summary for each in policies), strict=True):
        if summary.settings is not None:
            model = summary.settings.model or "model not recorded"
            games.setdefault(summary.settings.describe(), []).append(f"{name} ({model})")
        lines += [f"{name}: failed: {count} x {text}" for text, count in summary.failures.items()]
        if summary.judge_details is not None:
            errors = [f"{count} {cause.replace('_', ' ')}" for cause, count in summary.judge_details.errors.items()]
            audit = summary.judge_details.audit
            lines.append(
                f"{name}: judged by {summary.judge_details.model}; without a verdict and left out: "
                f"{', '.join(errors) or 'none'}; right for both {audit.both}, only for the judge {audit.only_judge}, "
                f"only for EM {audit.only_em}, for neither {audit.neither}."
            )
        if summary.num_vacuous_golds:
            lines.append(
                f"{name}: warning: {summary.num_vacuous_golds} gold answer(s) normalise to nothing under SQuAD's rule "
                f"and are matched by their own letters, such as {'; '.join(summary.vacuous_golds[:3])}."
            )
    return (*(f"{', '.join(names)}: {game}." for game, names in games.items()), *dict.fromkeys(lines))


def _require(has_any: object, what: str) -> None:
    if not has_any:
        raise DataError(f"these evaluations hold no {what}: an older version wrote them; evaluate again to add them")


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
