"""Invented names, unique by construction, in the eight sound systems of `wording/sounds.txt`.

A root is consonants and vowels in strict alternation (onset, vowel, middle, vowel, final, ending), so it splits back
into its parts in one way only; the endings of the sound systems do not overlap, so no root belongs to two of them.
Numbering the combinations then gives unique names without remembering any that were given out.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from seekling.corpus.almanac.dice import Dice, Scatter
from seekling.corpus.almanac.spec import read_wording

ROOTS_PER_PROVINCE = 32
_SHORT_EVERY = 4
_VOWELS = "aeiou"


@dataclass(frozen=True, slots=True)
class SoundSystem:
    """A root is onset+vowel+middle+vowel+final+ending, or the same without middle and vowel."""

    onsets: tuple[str, ...]
    middles: tuple[str, ...]
    finals: tuple[str, ...]
    endings: tuple[str, ...]
    """Disjoint between sound systems: this makes roots globally unique."""
    women: tuple[str, ...]
    """Endings of women's first names."""
    men: tuple[str, ...]
    particle: tuple[str, ...] = ()
    """Stands between first name and surname."""

    @property
    def num_short(self) -> int:
        """How many short roots there are."""
        return len(self.onsets) * len(_VOWELS) * len(self.finals) * len(self.endings)

    @property
    def num_long(self) -> int:
        """How many long roots there are."""
        return self.num_short * len(self.middles) * len(_VOWELS)

    def spell(self, number: int, *, is_long: bool) -> str:
        """The root with this number."""
        number, ending = divmod(number, len(self.endings))
        number, final = divmod(number, len(self.finals))
        number, vowel = divmod(number, len(_VOWELS))
        number, onset = divmod(number, len(self.onsets))
        tail = self.finals[final] + self.endings[ending]
        if is_long:
            number, second = divmod(number, len(_VOWELS))
            tail = self.middles[number % len(self.middles)] + _VOWELS[second] + tail
        return (self.onsets[onset] + _VOWELS[vowel] + tail).capitalize()


def _sound_system(block: str) -> SoundSystem:
    return SoundSystem(**{name: tuple(rest.split()) for name, rest in re.findall(r"^(\w+):(.*)$", block, re.M)})


SOUND_SYSTEMS = tuple(map(_sound_system, read_wording("sounds").split("\n\n")[1:]))


class Namer:
    """Gives every province its own roots and first names."""

    def __init__(self, seed: int, num_provinces: int) -> None:
        self._seed = seed
        self._order = Scatter(len(SOUND_SYSTEMS), seed, "phonology order")
        self._long = [Scatter(p.num_long, seed, "long", i) for i, p in enumerate(SOUND_SYSTEMS)]
        self._short = [Scatter(p.num_short, seed, "short", i) for i, p in enumerate(SOUND_SYSTEMS)]
        self._num_taken = ROOTS_PER_PROVINCE * -(-num_provinces // len(SOUND_SYSTEMS))
        """Long roots of each sound system that may be given out."""

    def _system_of(self, province: int) -> int:
        """The number of the sound system a province speaks; neighbours differ."""
        return self._order(province % len(SOUND_SYSTEMS))

    def root(self, province: int, number: int) -> str:
        """Root `number` (below ROOTS_PER_PROVINCE) of a province; no other (province, number) has it."""
        which, turn = self._system_of(province), province // len(SOUND_SYSTEMS)
        system = SOUND_SYSTEMS[which]
        if number % _SHORT_EVERY == 0:
            short = (turn * ROOTS_PER_PROVINCE + number) // _SHORT_EVERY
            if short < system.num_short:
                return system.spell(self._short[which](short), is_long=False)
        return system.spell(self._long[which](turn * ROOTS_PER_PROVINCE + number), is_long=True)

    def surname(self, province: int, number: int) -> str:
        """A root as a surname."""
        return " ".join([*SOUND_SYSTEMS[self._system_of(province)].particle, self.root(province, number)])

    def unused_variant(self, province: int, number: int) -> str:
        """A root that differs from `root(province, number)` in its last sounds and that nothing is called."""
        which = self._system_of(province)
        system, scatter = SOUND_SYSTEMS[which], self._long[which]
        own = scatter(province // len(SOUND_SYSTEMS) * ROOTS_PER_PROVINCE + number)
        # Numbers next to each other share all but the ending, then all but the final and the ending.
        near = ((own + step) % system.num_long for step in range(1, system.num_long))
        return system.spell(next(each for each in near if scatter.invert(each) >= self._num_taken), is_long=True)

    def unused_root(self, province: int, number: int) -> str:
        """A root that nothing is called and that is like no other; neighbouring numbers give different ones."""
        which = self._system_of(province)
        system, number = SOUND_SYSTEMS[which], province // len(SOUND_SYSTEMS) * ROOTS_PER_PROVINCE + number
        taken = self._num_taken
        return system.spell(self._long[which](taken + number % (system.num_long - taken)), is_long=True)

    def first_names(self, province: int, *, is_woman: bool) -> tuple[str, ...]:
        """The first names that a province uses; provinces of one sound system share them."""
        return _first_names(self._seed, self._system_of(province), is_woman)


@functools.lru_cache(maxsize=64)
def _first_names(seed: int, which: int, is_woman: bool) -> tuple[str, ...]:
    system = SOUND_SYSTEMS[which]
    endings = system.women if is_woman else system.men
    stems = [o + v + f for o in system.onsets for v in _VOWELS for f in system.finals]
    shuffled = Dice(seed, "first names", which, int(is_woman)).shuffled(stems)
    names = [(stem + endings[i % len(endings)]).capitalize() for i, stem in enumerate(shuffled)]
    return tuple(dict.fromkeys(names))[:36]
