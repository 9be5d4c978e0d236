"""The tables of results: what evaluated policies scored, cost, changed, did and got wrong.

Every figure comes from the summaries in `eval/*.json`. Rows whose questions differ are never comparable, so a table
that holds such rows says so below itself. A table that has nothing to show raises a DataError that says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

from seekling.config import Recipe
from seekling.errors import DataError
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES
from seekling.evaluate.compare import PairedComparison, SampleSummary
from seekling.evaluate.intervals import Mean, Rate
from seekling.evaluate.summary import EvalSummary, GroupSummary
from seekling.report.pooled import pooled_gains, read_pooled
from seekling.report.read import RunFolder
from seekling.report.results import POLICIES, Cell, Policy, Table

CHANGES = (("eval-sft", "eval-rl"), ("eval-base", "eval-sft"), ("eval-base", "eval-rl"))
"""Comparisons that are shown, in this order."""
Columns = Mapping[str, Callable[[EvalSummary], Cell]]
"""Header -> figure of a policy."""

_RESULTS: Columns = {
    "EM": lambda s: s.em,
    "F1": lambda s: s.f1,
    "ROUGE-L": lambda s: s.rouge_l,
    "judge": lambda s: s.judge,
    "answered": lambda s: s.answered,
    "gold page found": lambda s: s.gold_retrieved,
    "searches": lambda s: _number(s.searches_per_question),
    "turns": lambda s: _number(s.turns_per_question),
    "left out": lambda s: ", ".join(f"{n} {cause.replace('_', ' ')}" for cause, n in s.exclusions.items()) or None,
}
_COSTS: Columns = {
    "searches": lambda s: _number(s.searches_per_question),
    "turns": lambda s: _number(s.turns_per_question),
    "tokens written": lambda s: _number(s.action_tokens_per_question),
    "guessed ahead per token": lambda s: _number(s.drafted_per_token),
    "guessed right": lambda s: _percent(s.draft_acceptance, 0),
    "tokens of observations": lambda s: _number(s.observation_tokens_per_question),
    "tokens of prompts": lambda s: _number(s.prompt_tokens_per_question),
    "seconds": lambda s: _number(s.wall_seconds_per_question),
    "seconds of an episode": lambda s: _number(s.seconds_per_question),
    "dollars": lambda s: _number(s.dollars_per_question, 6),
    "dollars in all": lambda s: _number(s.dollars_total, 4),
}
_RECOVERY: Columns = {
    "recovered from a failed search": lambda s: s.recovery.recovered if s.recovery else None,
    "invented an answer": lambda s: s.recovery.false_answers if s.recovery else None,
    "unknown though answerable": lambda s: s.recovery.false_unknowns if s.recovery else None,
    "stopped when it was shown": lambda s: s.recovery.stopped_when_shown if s.recovery else None,
    "went on when it was not": lambda s: s.recovery.went_on_when_not if s.recovery else None,
}
_CONFIDENCE: Columns = {
    "promised": lambda s: _percent(s.confidence.promised_precision, 0) if s.confidence else None,
    "right of the answers shown": lambda s: s.confidence.right_of_shown if s.confidence else None,
    "answers shown": lambda s: s.confidence.shown if s.confidence else None,
    "area under risk-coverage": lambda s: _area(s),
}


def _results(policies: Sequence[Policy]) -> Table:
    return _by_policy("results", "Held-out questions", _RESULTS, policies, _conditions(policies))


def _costs(policies: Sequence[Policy]) -> Table:
    return _by_policy("costs", "Cost of a question", _COSTS, policies)


def _recovery(policies: Sequence[Policy]) -> Table:
    _require((each.summary.recovery for each in policies), "recovery")
    return _by_policy("recovery", "Recovery", _RECOVERY, policies)


def _confidence(policies: Sequence[Policy]) -> Table:
    _require((each.summary.confidence for each in policies), "confidence")
    return _by_policy("confidence", "Confidence", _CONFIDENCE, policies)


def _sources(policies: Sequence[Policy]) -> Table:
    if not any(len(each.summary.by_source) > 1 for each in policies):
        raise DataError("the questions of these runs are of one data set")
    return _by_group("sources", "data set", policies, lambda summary: summary.by_source)


def _kinds(policies: Sequence[Policy]) -> Table:
    if len({kind for each in policies for kind in each.summary.by_kind}) < 2:
        raise DataError("the questions of these runs are of one kind")
    return _by_group("kinds", "kind", policies, lambda summary: summary.by_kind)


def _behaviours(policies: Sequence[Policy]) -> Table:
    seen = [name for name in BEHAVIOURS if any(name in each.summary.behaviours for each in policies)]
    _require(seen, "behaviours")
    rows = [(name, *(each.summary.behaviours.get(name) for each in policies)) for name in seen]
    return _by_name("behaviours", "Behaviours", "behaviour", rows, policies)


def _errors(policies: Sequence[Policy]) -> Table:
    causes = [each.summary.error_causes for each in policies]
    _require(causes, "error_causes")
    rows = [(cause, *(str(each.get(cause, 0)) if each else None for each in causes)) for cause in ERROR_CAUSES]
    rows.append(("all that is not right", *(str(sum(each.values())) if each else None for each in causes)))
    return _by_name("errors", "Causes of errors", "cause", rows, policies)


def _figures(policies: Sequence[Policy]) -> Table:
    """Every figure of the summaries, whatever it is called: a rate or mean with its interval, or a number."""
    columns = [vars(each.summary) for each in policies]
    rows = []
    for name in (field.name for field in fields(EvalSummary)):
        cells = [_any_figure(column[name]) for column in columns]
        if any(cells):
            rows.append((name.replace("_", " "), *cells))
    return _by_name("figures", "All figures", "figure", rows, policies)


def _any_figure(value: object) -> Cell:
    return value if isinstance(value, Rate | Mean) else f"{value:.4g}" if isinstance(value, int | float) else None


def _changes(policies: Sequence[Policy]) -> Table:
    runs = _runs(policies)
    found = [(place, each) for place, run in runs.items() for each in changes_of(run)]
    if not found:
        raise DataError("no two stages of these runs were compared; `seekling report RUN` compares them")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            *([place] if len(runs) > 1 else []),
            " → ".join(POLICIES[name.removeprefix("eval-")] for name in (each.first, each.second)),
            each.em_difference,
            *map(str, (each.num_wins, each.num_losses, each.num_both, each.num_neither, each.num_questions)),
        )
        for place, each in found
    )
    header = (*(["run"] if len(runs) > 1 else []), "change", "EM", "won", "lost", "both right", "neither", "n")
    note = (
        "Exact match, second minus first, question by question: a paired t test over the questions that both scored; "
        "interval and p are of the same test."
    )
    return Table("changes", "What each stage changed", header, rows, (note,))


def changes_of(run: RunFolder) -> list[PairedComparison]:
    """The comparisons of a run's stages that are shown, in their order."""
    pairs = {(each.first, each.second): each for each in run.comparisons}
    return [pairs[pair] for pair in CHANGES if pair in pairs]


def _samples(policies: Sequence[Policy]) -> Table:
    runs = _runs(policies)
    found, problems = read_pooled(list(runs.values()))
    if not found and not problems:
        raise DataError(
            "these runs hold neither several samples nor several seeds: expected `seekling eval --samples N`, or runs "
            "that differ in their seed alone"
        )
    names = list(runs)
    rows = [
        (
            ", ".join(names[number] for number in each.runs),
            POLICIES.get(each.policy, each.policy),
            f"seeds {', '.join(map(str, each.seeds))}" if each.seeds else f"{each.summary.num_samples} samples",
            each.summary,
        )
        for each in found
    ]
    return pooled_table(rows, problems)


def pooled_table(pooled: Sequence[tuple[str, str, str, SampleSummary]], problems: Sequence[str] = ()) -> Table:
    """Several evaluations of the same questions as one: a row for each (runs, policy, of what, figures)."""
    ks = sorted({k for *_, summary in pooled for k in summary.pass_at_k})
    rows = tuple(
        (
            *words,
            str(summary.num_questions),
            summary.em_mean,
            ", ".join(f"{rate.k}/{rate.n}" for rate in summary.em_per_sample),
            None if summary.em_deviation is None else f"{100 * summary.em_deviation:.1f} points",
            summary.f1_mean,
            *(summary.pass_at_k.get(k) for k in ks),
            str(summary.num_excluded),
        )
        for *words, summary in pooled
    )
    header = ("run", "policy", "of", "questions", "EM, mean", "EM of each", "deviation", "F1, mean")
    columns = (*header, *(f"pass@{k}" for k in ks), "left out")
    note = (
        "95 % intervals over questions: samples of one question are not independent. pass@k is the chance that one of "
        "k is right."
    )
    return Table("samples", "Several samples or seeds", columns, rows, (note, *problems))


def _gains(policies: Sequence[Policy]) -> Table:
    runs = _runs(policies)
    found, problems = pooled_gains(list(runs.values()))
    if not found:
        raise DataError(" ".join(problems) or "these runs hold no evaluations of SFT and of SFT+RL to compare")
    names = list(runs)
    rows = tuple(
        (", ".join(names[number] for number in each.runs), each.kind or "all", each.first, each.second, each.difference)
        for each in found
    )
    note = (
        "k/n over all seeds; 95 % intervals over questions, which are the clusters: of rates Wilson's, of differences "
        "those of the paired t test that gives p."
    )
    header = ("runs", "kind", POLICIES["sft"], POLICIES["rl"], "difference")
    return Table("gains", "SFT+RL against SFT", header, rows, (note, *problems))


def _expected(policies: Sequence[Policy]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for place, run in _runs(policies).items():
        expected = (run.settings or Recipe()).expected
        after = run.evaluations.get("rl", run.evaluations.get("sft"))
        for number, metric in enumerate(expected.metrics):
            before = _percent(expected.before[number], 1) if expected.before else None
            reached = _reached(run.evaluations.get("base"), metric), _reached(after, metric)
            then = _percent(expected.values[number], 1)
            rows.append((place, metric, before, reached[0], then, reached[1], expected.source))
    if not rows:
        raise DataError("none of these runs' recipes has an [expected] block; the full-size recipes have one")
    header = ("run", "figure", "expected before", "before", "expected after", "after", "source of the expectation")
    note = "Before is the untrained model, after the last stage that was evaluated. A dash is a figure nobody has."
    return Table("expected", "Expected and reached", header, tuple(rows), (note,))


def _reached(summary: EvalSummary | None, metric: str) -> Cell:
    """Our figure of `benchmark/measure`, from the questions of that data set alone."""
    benchmark, _, measure = metric.partition("/")
    group = summary.by_source.get(benchmark) if summary is not None else None
    return _any_figure(vars(group).get(measure)) if group is not None else None


TABLES: Mapping[str, Callable[[Sequence[Policy]], Table]] = {
    "results": _results,
    "changes": _changes,
    "gains": _gains,
    "samples": _samples,
    "kinds": _kinds,
    "sources": _sources,
    "behaviours": _behaviours,
    "errors": _errors,
    "recovery": _recovery,
    "confidence": _confidence,
    "expected": _expected,
    "costs": _costs,
    "figures": _figures,
}
"""By name, as on the command line."""


def tables_of(policies: Sequence[Policy], names: Sequence[str]) -> list[Table]:
    """Those of the named tables for which there are figures."""
    found = []
    for name in names if policies else ():
        with contextlib.suppress(DataError):  # says that there is nothing to show
            found.append(TABLES[name](policies))
    return found


def _by_policy(
    label: str, title: str, columns: Columns, policies: Sequence[Policy], more_notes: Sequence[str] = ()
) -> Table:
    where, rows = _where(policies)
    cells = tuple(
        (*row, *(figure(each.summary) for figure in columns.values())) for row, each in zip(rows, policies, strict=True)
    )
    stages = tuple(f"eval-{each.name}" for each in policies)
    return Table(label, title, (*where, *columns), cells, (*_notes(policies), *more_notes), stages).without_empty()


def _by_group(
    label: str, what: str, policies: Sequence[Policy], groups_of: Callable[[EvalSummary], Mapping[str, GroupSummary]]
) -> Table:
    where, places = _where(policies)
    rows: list[tuple[Cell, ...]] = []
    stages = []
    for name in dict.fromkeys(name for each in policies for name in groups_of(each.summary)):
        for place, each in zip(places, policies, strict=True):
            group = groups_of(each.summary).get(name)
            if group is not None:
                scores = (group.em, group.f1, group.substring, group.rouge_l, group.judge, group.gold_retrieved)
                rows.append((*place, name or "(none)", *scores))
                stages.append(f"eval-{each.name}")
    header = (*where, what, "EM", "F1", "substring", "ROUGE-L", "judge", "gold page found")
    return Table(label, f"By {what}", header, tuple(rows), _notes(policies), tuple(stages)).without_empty()


def _by_name(label: str, title: str, what: str, rows: Sequence[tuple[Cell, ...]], policies: Sequence[Policy]) -> Table:
    return Table(label, title, (what, *map(" ".join, _where(policies)[1])), tuple(rows), _notes(policies))


def _runs(policies: Sequence[Policy]) -> dict[str, RunFolder]:
    return {each.place: each.run for each in policies}


def _where(policies: Sequence[Policy]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What names a policy, run and policy or the policy alone: the header, and the words of each."""
    if len(_runs(policies)) > 1:
        return ("run", "policy"), [(each.place, each.title) for each in policies]
    return ("policy",), [(each.title,) for each in policies]


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
    for words, summary in zip(_where(policies)[1], (each.summary for each in policies), strict=True):
        name = " ".join(words)
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


def _require(figures: Iterable[object], what: str) -> None:
    if not any(figures):
        raise DataError(f"these evaluations hold no {what}: an older version wrote them; evaluate again to add them")


def _number(value: float | None, digits: int = 2) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _percent(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{100 * value:.{digits}f} %"


def _area(summary: EvalSummary) -> str | None:
    found = summary.confidence
    if found is None or found.aurc is None:
        return None
    return f"{found.aurc:.3f} up to {100 * found.curve[-1][0]:.0f} %"
