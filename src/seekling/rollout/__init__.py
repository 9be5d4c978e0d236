"""A policy times an environment gives episodes: the loop, and the only place where messages become tokens."""
