"""Episodes -> figures that can be trusted: k/n, intervals, exclusions by cause, paired comparisons."""
