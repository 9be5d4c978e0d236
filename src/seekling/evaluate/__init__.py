"""Episodes -> figures that can be trusted: k/n, intervals, exclusions by cause, paired comparisons."""

from seekling.evaluate.compare import PairedComparison, compare, compare_all
from seekling.evaluate.files import (
    read_records,
    read_summary,
    write_comparison,
    write_comparisons,
    write_summary,
)
from seekling.evaluate.intervals import (
    Mean,
    Rate,
    format_mean,
    format_rate,
    mcnemar_p,
    mean_of,
    paired_bootstrap,
    rate_of,
    wilson_interval,
)
from seekling.evaluate.samples import SampleSummary, pass_at_k, summarize_samples
from seekling.evaluate.score import PredictionScores, read_predictions, score_predictions
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import EvalSummary, GroupSummary, summarize

__all__ = [
    "EvalSettings",
    "EvalSummary",
    "GroupSummary",
    "Mean",
    "PairedComparison",
    "PredictionScores",
    "Rate",
    "SampleSummary",
    "compare",
    "compare_all",
    "format_mean",
    "format_rate",
    "mcnemar_p",
    "mean_of",
    "paired_bootstrap",
    "pass_at_k",
    "rate_of",
    "read_predictions",
    "read_records",
    "read_summary",
    "score_predictions",
    "summarize",
    "summarize_samples",
    "wilson_interval",
    "write_comparison",
    "write_comparisons",
    "write_summary",
]
