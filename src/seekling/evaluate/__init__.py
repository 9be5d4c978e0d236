"""Episodes -> figures that can be trusted: k/n, intervals, exclusions by cause, paired comparisons."""

from seekling.evaluate.compare import PairedComparison, compare
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
from seekling.evaluate.score import PredictionScores, read_predictions, score_predictions
from seekling.evaluate.summary import EvalSettings, EvalSummary, GroupSummary, summarize

__all__ = [
    "EvalSettings",
    "EvalSummary",
    "GroupSummary",
    "Mean",
    "PairedComparison",
    "PredictionScores",
    "Rate",
    "compare",
    "format_mean",
    "format_rate",
    "mcnemar_p",
    "mean_of",
    "paired_bootstrap",
    "rate_of",
    "read_predictions",
    "read_records",
    "read_summary",
    "score_predictions",
    "summarize",
    "wilson_interval",
    "write_comparison",
    "write_comparisons",
    "write_summary",
]
