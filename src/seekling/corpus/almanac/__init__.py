"""A seeded almanac of a world that does not exist: nothing in it can be remembered, only found.

`generate` writes a corpus of encyclopaedia pages and the questions to train and test on. The files, in reading order:
dice (seeded choices), phonology (unique invented names), census (who exists), spec and model (what can be said),
people ... works (the kinds of pages, mostly wording), province (what is true), pages (prose), questions, generator.
"""

from __future__ import annotations

from seekling.corpus.almanac.generator import AlmanacSummary, generate

__all__ = ["AlmanacSummary", "generate"]
