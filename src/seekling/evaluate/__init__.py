"""A policy on a benchmark gives scores with their intervals, and comparisons on the same questions."""
