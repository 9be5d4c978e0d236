"""Invented names, unique by construction, in eight sound systems.

A root is consonants and vowels in strict alternation (onset, vowel, middle, vowel, final, ending), so it splits back
into its parts in one way only; the endings of the eight sound systems do not overlap, so no root belongs to two of
them. Numbering the combinations then gives unique names without remembering any that were given out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from seekling.corpus.almanac.dice import Dice, Scatter

ROOTS_PER_PROVINCE = 32
_SHORT_EVERY = 4
_VOWELS = ("a", "e", "i", "o", "u")


@dataclass(frozen=True, slots=True)
class Phonology:
    """One sound system. A root is onset+vowel+middle+vowel+final+ending, or the same without middle and vowel."""

    onsets: tuple[str, ...]
    vowels: tuple[str, ...]
    middles: tuple[str, ...]
    finals: tuple[str, ...]
    endings: tuple[str, ...]
    """Disjoint between sound systems: this makes roots globally unique."""
    women: tuple[str, ...]
    """Endings of women's first names."""
    men: tuple[str, ...]
    particle: str = ""
    """Stands between first name and surname."""

    @property
    def num_long(self) -> int:
        """How many long roots there are."""
        return self.num_short * len(self.middles) * len(self.vowels)

    @property
    def num_short(self) -> int:
        """How many short roots there are."""
        return len(self.onsets) * len(self.vowels) * len(self.finals) * len(self.endings)

    def spell(self, number: int, *, is_long: bool) -> str:
        """Return the root with this number."""
        number, ending = divmod(number, len(self.endings))
        number, final = divmod(number, len(self.finals))
        number, vowel = divmod(number, len(self.vowels))
        number, onset = divmod(number, len(self.onsets))
        tail = self.finals[final] + self.endings[ending]
        if is_long:
            number, second = divmod(number, len(self.vowels))
            tail = self.middles[number % len(self.middles)] + self.vowels[second] + tail
        return (self.onsets[onset] + self.vowels[vowel] + tail).capitalize()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _system(
    onsets: str, middles: str, finals: str, endings: str, women: str, men: str, particle: str = ""
) -> Phonology:
    return Phonology(
        _words(onsets), _VOWELS, _words(middles), _words(finals), _words(endings), _words(women), _words(men), particle
    )


PHONOLOGIES = (
    _system(
        "b br d dr f g h k l m n r st t v",
        "ld nd rr l m n rg st v sk",
        "l m n r v d k b t",
        "en ek und ast or",
        "a e hild run",
        "ar ulf mund en",
    ),
    _system(
        "b c d f l m n p r s t v",
        "l n r ll nn m v lv rn sc c nd",
        "l n r d t v m nd s",
        "a ia ell anth io",
        "ina etta ia elle",
        "o ando ino ello",
    ),
    _system(
        "b d dr g j k kr l m n p r s t v z",
        "b d z v zl rm st k l n r sh",
        "l m n r v d k t z",
        "ik ov ush aj in",
        "ka ena isha ova",
        "ek ash im oslav",
    ),
    _system(
        "b c ch d f g j l m n p r s t v",
        "l r m n v ch rd ll nn b s g",
        "l r n m v t b c d",
        "e ois aud ert aux",
        "ine elle anne ie",
        "ien aud on ot",
        "de",
    ),
    _system(
        "h k l m n p t v w f",
        "k l m n p t v w h nt ng",
        "k l m n p t v w h ng",
        "u ai ao oa ui",
        "ani ea ila u",
        "oku ano ai imo",
    ),
    _system(
        "b d gh h j k kh m n q r s sh t z",
        "b d h l m n r sh z k rd lm",
        "b d l m n r s z k",
        "uth eth im az ar",
        "a iya ara eh",
        "ir ad uman eph",
        "ar",
    ),
    _system(
        "b c d g gl gw h ll m n p r rh t tr",
        "dd ll n r rn m w g ch nn v",
        "l n r m dd g v d rn",
        "ydd yr ach och an",
        "wen ys eth a",
        "yn wal or ion",
    ),
    _system(
        "d g k l m n p ph r s t th x z",
        "l m n r ph th st k nt lk rt s",
        "l m n r t th k p d",
        "o os is on eus",
        "ia ea ora e",
        "as es or ion",
    ),
)


class Namer:
    """Gives every province its own roots and first names."""

    def __init__(self, seed: int, num_provinces: int) -> None:
        self._seed = seed
        self._num_provinces = num_provinces
        self._order = Scatter(len(PHONOLOGIES), seed, "phonology order")
        self._long = [Scatter(p.num_long, seed, "long", i) for i, p in enumerate(PHONOLOGIES)]
        self._short = [Scatter(p.num_short, seed, "short", i) for i, p in enumerate(PHONOLOGIES)]

    def phonology_of(self, province: int) -> int:
        """Return the number of the sound system a province speaks; neighbours differ."""
        return self._order(province % len(PHONOLOGIES))

    def root(self, province: int, number: int) -> str:
        """Return root `number` (below ROOTS_PER_PROVINCE) of a province; no other (province, number) has it."""
        which = self.phonology_of(province)
        phonology = PHONOLOGIES[which]
        turn = province // len(PHONOLOGIES)
        if number % _SHORT_EVERY == 0:
            short = turn * (ROOTS_PER_PROVINCE // _SHORT_EVERY) + number // _SHORT_EVERY
            if short < phonology.num_short:
                return phonology.spell(self._short[which](short), is_long=False)
        return phonology.spell(self._long[which](turn * ROOTS_PER_PROVINCE + number), is_long=True)

    def unused_variant(self, province: int, number: int) -> str:
        """Return a root that differs from `root(province, number)` in its last sounds and that nothing is called."""
        which = self.phonology_of(province)
        phonology, scatter = PHONOLOGIES[which], self._long[which]
        taken = ROOTS_PER_PROVINCE * -(-self._num_provinces // len(PHONOLOGIES))
        own = scatter(province // len(PHONOLOGIES) * ROOTS_PER_PROVINCE + number)
        for step in range(1, phonology.num_long):
            # Numbers next to each other share all but the ending, then all but the final and the ending.
            candidate = (own + step) % phonology.num_long
            if scatter.invert(candidate) >= taken:
                return phonology.spell(candidate, is_long=True)
        raise AssertionError("a sound system has more roots than the largest almanac uses")

    def unused_root(self, province: int, number: int) -> str:
        """Return a root that nothing is called and that is like no other; neighbouring numbers give different ones."""
        phonology, scatter = PHONOLOGIES[self.phonology_of(province)], self._long[self.phonology_of(province)]
        taken = ROOTS_PER_PROVINCE * -(-self._num_provinces // len(PHONOLOGIES))
        turn = province // len(PHONOLOGIES)
        return phonology.spell(
            scatter(taken + (turn * ROOTS_PER_PROVINCE + number) % (phonology.num_long - taken)), is_long=True
        )

    def first_names(self, province: int, *, is_woman: bool) -> tuple[str, ...]:
        """Return the first names that a province uses; provinces of one sound system share them."""
        return _first_names(self._seed, self.phonology_of(province), is_woman)


@lru_cache(maxsize=64)
def _first_names(seed: int, which: int, is_woman: bool) -> tuple[str, ...]:
    phonology = PHONOLOGIES[which]
    endings = phonology.women if is_woman else phonology.men
    stems = [o + v + f for o in phonology.onsets for v in phonology.vowels for f in phonology.finals]
    dice = Dice(seed, "first names", which, int(is_woman))
    names = [(stem + endings[i % len(endings)]).capitalize() for i, stem in enumerate(dice.shuffled(stems))]
    return tuple(dict.fromkeys(names))[:36]
