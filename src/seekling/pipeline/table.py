"""The result table of a run: base -> SFT -> SFT+RL, with k/n and intervals, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seekling.errors import DataError
from seekling.evaluate.compare import compare
from seekling.evaluate.files import read_records
from seekling.evaluate.intervals import format_difference, format_mean, format_rate
from seekling.evaluate.samples import SampleSummary
from seekling.evaluate.summary import EvalSummary
from seekling.evaluate.worsening import describe_worsening

NAMES = {"base": "base", "sft": "SFT", "rl": "SFT+RL"}


def result_table(summaries: Sequence[EvalSummary], folder: Path) -> None:
    """Print the evaluations of a run, what they depend on, what RL gained over SFT on the same questions, and warnings.

    Args:
        summaries: in the order of training.
        folder: of the run, for the paired comparison.
    """
    console = Console(highlight=False)
    has_judge = any(summary.judge is not None for summary in summaries)
    table = Table("", "EM", "F1", "ROUGE-L", title=_title(summaries))
    for name in (*(["judge"] if has_judge else []), "answered", "gold page found", "searches", "turns"):
        table.add_column(name)
    for summary in summaries:
        name = summary.stage.removeprefix("eval-")
        judge = [format_rate(summary.judge) if summary.judge is not None else "-"] if has_judge else []
        table.add_row(
            escape(NAMES.get(name, name)),
            format_rate(summary.em),
            format_mean(summary.f1),
            format_mean(summary.rouge_l) if summary.rouge_l is not None else "-",
            *judge,
            f"{summary.answered.k}/{summary.answered.n}",
            f"{summary.gold_retrieved.k}/{summary.gold_retrieved.n}",
            _number(summary.searches_per_question),
            _number(summary.turns_per_question),
        )
    console.print(table)
    if any(len(summary.by_source) > 1 for summary in summaries):
        console.print(source_table(summaries))
    by_name = {summary.stage.removeprefix("eval-"): summary for summary in summaries}
    for first, second in (("base", "rl"), ("sft", "rl")):
        if first in by_name and second in by_name:
            console.print(_gain(folder, first, second))
    for sentence in _worsening(folder, by_name):
        console.print(f"warning: {sentence}", markup=False, style="yellow")
    for line in notes_of(summaries):
        console.print(line, markup=False)


def source_table(summaries: Sequence[EvalSummary]) -> Table:
    """The evaluations per data set."""
    table = Table("", "data set", "EM", "F1", "substring", "ROUGE-L", "judge", "gold page found")
    for summary in summaries:
        name = summary.stage.removeprefix("eval-")
        for source, group in summary.by_source.items():
            table.add_row(
                escape(NAMES.get(name, name)),
                escape(source or "(none)"),
                format_rate(group.em),
                format_mean(group.f1),
                "-" if group.substring is None else format_rate(group.substring),
                "-" if group.rouge_l is None else format_mean(group.rouge_l),
                "-" if group.judge is None else format_rate(group.judge),
                f"{group.gold_retrieved.k}/{group.gold_retrieved.n}",
            )
    return table


def notes_of(summaries: Sequence[EvalSummary]) -> list[str]:
    """What a reader needs besides the table: settings, costs, exclusions, odd golds, the judge's errors."""
    lines: list[str] = []
    for summary in summaries:
        name = summary.stage.removeprefix("eval-")
        if summary.settings is not None:
            lines.append(f"{name}: {summary.settings.model or 'model not recorded'}; {summary.settings.describe()}")
        costs = [
            f"{_number(summary.action_tokens_per_question)} tokens written",
            f"{_number(summary.observation_tokens_per_question)} read",
            f"{_number(summary.wall_seconds_per_question)} s ({_number(summary.seconds_per_question)} s of an episode)",
        ]
        if summary.prompt_tokens_per_question is not None:
            costs.insert(2, f"{_number(summary.prompt_tokens_per_question)} sent as prompts")
        if summary.draft_acceptance is not None and summary.drafted_per_token is not None:
            guessed = f"{summary.drafted_per_token:.2f} tokens guessed ahead for each written"
            costs.insert(1, f"{guessed}, {summary.draft_acceptance:.0%} of them right")
        if summary.dollars_per_question is not None:
            costs.append(f"${summary.dollars_per_question:.6f} (${summary.dollars_total or 0:.4f} in all)")
        lines.append(f"{name}: per question {', '.join(costs)}")
        lines += [f"{name}: left out of every figure: {count} {cause}" for cause, count in summary.exclusions.items()]
        lines += [f"{name}:   {count} x {text}" for text, count in summary.failures.items()]
        if summary.judge_details is not None:
            errors = [f"{count} {cause}" for cause, count in summary.judge_details.errors.items()]
            audit = summary.judge_details.audit
            lines.append(
                f"{name}: judge {summary.judge_details.model}: without a verdict and left out: "
                f"{', '.join(errors) or 'none'}; right for both {audit.both}, only for the judge {audit.only_judge}, "
                f"only for EM {audit.only_em}, for neither {audit.neither}"
            )
    if summaries and summaries[0].num_vacuous_golds:
        first = summaries[0]
        lines.append(
            f"warning: {first.num_vacuous_golds} gold answer(s) normalise to nothing under SQuAD's rule and are "
            f"matched by their own letters, such as {'; '.join(first.vacuous_golds[:3])}"
        )
    return lines


def samples_table(samples: SampleSummary) -> Table:
    """Several samples or seeds as one: mean, pass@k, majority vote."""
    deviation = "" if samples.em_deviation is None else f", standard deviation {100 * samples.em_deviation:.1f} points"
    table = Table("", "", title=f"{samples.num_samples} samples of {samples.num_questions} questions")
    table.add_row("EM, mean", format_mean(samples.em_mean))
    table.add_row("EM of each", ", ".join(f"{rate.k}/{rate.n}" for rate in samples.em_per_sample) + deviation)
    table.add_row("F1, mean", format_mean(samples.f1_mean))
    for k, mean in samples.pass_at_k.items():
        table.add_row(f"pass@{k}", format_mean(mean))
    table.add_row("majority vote, EM", format_rate(samples.majority))
    table.add_row("left out", f"{samples.num_excluded} episodes that infrastructure failures ended")
    return table


def _title(summaries: Sequence[EvalSummary]) -> str:
    if not summaries:
        return "no evaluations"
    first = summaries[0]
    decoding = "greedy" if first.temperatures == (0.0,) else f"temperature {first.temperatures}"
    return f"{first.num_questions} held-out questions ({first.question_set_hash[:12]}), {decoding}, 95 % intervals"


def _gain(folder: Path, first: str, second: str) -> str:
    paths = [folder / "episodes" / f"eval-{name}.jsonl" for name in (first, second)]
    try:
        result = compare(list(read_records(paths[0])), list(read_records(paths[1])))
    except DataError as error:
        return f"{NAMES[first]} and {NAMES[second]} cannot be compared: {escape(str(error))}"
    gap = escape(format_difference(result.em_difference))
    return f"{NAMES[second]} over {NAMES[first]}: EM {gap} (n = {result.num_questions}, paired t)"


def _worsening(folder: Path, names: Iterable[str]) -> list[str]:
    paths = [folder / "episodes" / f"eval-{name}.jsonl" for name in names]
    try:
        return describe_worsening(record for path in paths for record in read_records(path))
    except DataError as error:
        return [f"the evaluations cannot be compared: {error}"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
