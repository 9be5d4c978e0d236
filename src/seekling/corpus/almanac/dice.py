"""Seeded choices that are the same on every machine, Python version and hash seed.

A `Dice` is keyed, not sequential: two dice with the same key roll the same numbers, and no dice disturbs another.
That is what lets any page of a million be derived alone. The standard `random` module is not used because the
algorithms behind `choice` and `shuffle` may change between Python versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1


class Dice:
    """A stream of pseudo-random choices that is a function of its key."""

    __slots__ = ("_state",)

    def __init__(self, *key: int | str) -> None:
        text = "\x1f".join(map(str, key))
        self._state = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def below(self, bound: int) -> int:
        """A number in [0, bound).

        Source: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); the range by multiplication keeps a bias below 2**-40.
        """
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((state ^ (state >> 31)) * bound) >> 64

    def between(self, low: int, high: int) -> int:
        """A number in [low, high]; `low` when the range is empty."""
        return low + self.below(high - low + 1) if high > low else low

    def chance(self, percent: int) -> bool:
        """True in `percent` of a hundred cases."""
        return self.below(100) < percent

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in a new order (Fisher-Yates)."""
        result = list(items)
        for i in range(len(result) - 1, 0, -1):
            j = self.below(i + 1)
            result[i], result[j] = result[j], result[i]
        return result

    def by_weight(self, items: Sequence[T], divisors: Sequence[int]) -> list[T]:
        """The items in a new order: each next one is drawn with weight 1/divisor from those that are left.

        Source: A-Res (Efraimidis and Spirakis, 2006): in the order of u ** divisor, u uniform; in whole numbers, which
        are the same on every machine.
        """
        keys = [(self.below(1 << 64) ** divisor) >> (64 * (divisor - 1)) for divisor in divisors]
        return [items[index] for index in sorted(range(len(items)), key=lambda index: -keys[index])]


class Scatter:
    """A bijection of [0, size) onto itself that can be inverted: neighbours end up far apart."""

    # Larger than any size in use and prime, so each is coprime to every size.
    _PRIMES = (1_000_000_007, 1_000_000_009, 1_000_000_021, 1_000_000_033, 1_000_000_087, 1_000_000_093)

    def __init__(self, size: int, *key: int | str) -> None:
        dice = Dice("scatter", *key)
        self.size = size
        self._factor = dice.pick(self._PRIMES) * dice.pick(self._PRIMES)
        self._offset = dice.below(size)
        self._inverse = pow(self._factor, -1, size) if size > 1 else 0

    def __call__(self, number: int) -> int:
        """Where `number` is sent."""
        return (number * self._factor + self._offset) % self.size

    def invert(self, number: int) -> int:
        """The number that is sent to `number`."""
        return (number - self._offset) * self._inverse % self.size
