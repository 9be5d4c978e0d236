"""Episodes -> figures that can be trusted: k/n, intervals, exclusions by cause, paired comparisons."""

from seekling.evaluate.behaviour_rates import CurvePoint, behaviour_curves, behaviour_rates, error_causes, first_change
from seekling.evaluate.behaviours import BEHAVIOURS, ERROR_CAUSES, detect_behaviours, error_cause
from seekling.evaluate.compare import PairedComparison, compare, compare_all
from seekling.evaluate.files import (
    read_records,
    read_summary,
    write_comparison,
    write_comparisons,
    write_summary,
)
from seekling.evaluate.intervals import (
    Difference,
    Mean,
    Rate,
    difference_of,
    format_difference,
    format_mean,
    format_rate,
    mean_of,
    rate_of,
    wilson_interval,
)
from seekling.evaluate.samples import SampleSummary, pass_at_k, summarize_samples
from seekling.evaluate.score import PredictionScores, read_predictions, score_predictions
from seekling.evaluate.settings import EvalSettings
from seekling.evaluate.summary import EvalSummary, GroupSummary, summarize

__all__ = [
    "BEHAVIOURS",
    "ERROR_CAUSES",
    "CurvePoint",
    "Difference",
    "EvalSettings",
    "EvalSummary",
    "GroupSummary",
    "Mean",
    "PairedComparison",
    "PredictionScores",
    "Rate",
    "SampleSummary",
    "behaviour_curves",
    "behaviour_rates",
    "compare",
    "compare_all",
    "detect_behaviours",
    "difference_of",
    "error_cause",
    "error_causes",
    "first_change",
    "format_difference",
    "format_mean",
    "format_rate",
    "mean_of",
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
