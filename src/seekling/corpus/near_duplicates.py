"""Pages that say nearly the same as an earlier one, found by MinHash and locality-sensitive hashing (rensa).

Similarity is the Jaccard index of the sets of runs of five words, lower-cased; MinHash estimates it from 128 numbers a
page, within about 0.04. Only these numbers are kept, so memory is about a kilobyte a page.

Source: Broder, "On the resemblance and containment of documents" (1997).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seekling.errors import MissingExtraError

if TYPE_CHECKING:
    from rensa import RMinHash  # type: ignore[import-untyped]

RUN_WORDS = 5
_PERMUTATIONS = 128
_SEED = 1


class NearDuplicates:
    """Remembers the pages it is shown and recognises those that resemble one of them."""

    def __init__(self, threshold: float) -> None:
        """Make one that knows no page.

        Args:
            threshold: the least similarity of a near-duplicate, above 0 and at most 1.

        Raises:
            MissingExtraError: rensa is not installed.
        """
        try:
            from rensa import RMinHash, RMinHashDeduplicator
        except ImportError:
            raise MissingExtraError(
                "retrieval.index.drop_similar needs rensa: pip install 'seekling[ingest]', or set it to 0"
            ) from None
        self._new_hash = RMinHash
        self._known = RMinHashDeduplicator(threshold=threshold, num_perm=_PERMUTATIONS, use_lsh=True, seed=_SEED)
        self._hashes: dict[str, RMinHash] = {}

    def find_or_add(self, page_id: str, text: str) -> tuple[str, float] | None:
        """The earlier page that a page resembles most, and how much; a page that resembles none is remembered.

        A page without words resembles none.
        """
        words = text.lower().split()
        if not words:
            return None
        runs = {" ".join(words[start : start + RUN_WORDS]) for start in range(max(1, len(words) - RUN_WORDS + 1))}
        minhash = self._new_hash(num_perm=_PERMUTATIONS, seed=_SEED)
        minhash.update(sorted(runs))
        found = self._known.get_duplicates(minhash)
        if found:
            nearest = max(sorted(found), key=lambda each: float(minhash.jaccard(self._hashes[each])))
            return nearest, float(minhash.jaccard(self._hashes[nearest]))
        self._known.add(page_id, minhash)
        self._hashes[page_id] = minhash
        return None
