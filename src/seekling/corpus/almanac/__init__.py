"""A seeded almanac of a world that does not exist: nothing in it can be remembered, only found.

`generate` writes a corpus of encyclopaedia pages and the questions to train and test on. In reading order: dice (seeded
choices), spec (how `wording/*.txt` is read), names (unique invented ones), model (what can be said), census (who
exists), facts (what is true of each kind), province, pages (prose), questions, generator.
"""

from __future__ import annotations

from seekling.corpus.almanac.generator import AlmanacSummary, generate, num_questions

__all__ = ["AlmanacSummary", "generate", "num_questions"]
