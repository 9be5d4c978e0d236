"""A seeded almanac of a world that does not exist: nothing in it can be remembered, only found.

`generate` writes a corpus of encyclopaedia pages and the questions to train and test on. The files, in reading order:
dice (seeded choices), phonology (unique invented names), census (who exists), spec and model (what can be said),
wording/*.txt (how each kind of page talks), people ... works (its facts), province (what is true), pages (prose),
questions, generator.
"""

from __future__ import annotations

from seekling.corpus.almanac.generator import AlmanacSummary, generate, num_questions

__all__ = ["AlmanacSummary", "generate", "num_questions"]
