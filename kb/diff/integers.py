"""The sets of integers that simple conditions on one dim can name: multiples of a step within a range."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Integers:
    """Multiples of ``step`` from ``low`` to ``high``, both included; ``high`` may be infinite.

    Two objects are equal exactly when the sets are: ends are moved onto multiples, a single value has step 1, and the
    empty set has one form.
    """

    low: int
    high: float = math.inf
    step: int = 1

    def __post_init__(self) -> None:
        low = -(-self.low // self.step) * self.step
        high = self.high if self.high == math.inf else int(self.high) // self.step * self.step
        step = self.step
        if low > high:
            low, high, step = 1, 0, 1
        elif low == high:
            step = 1
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "step", step)

    @property
    def is_empty(self) -> bool:
        """True where no integer is in the set."""
        return self.low > self.high

    def __and__(self, other: Integers) -> Integers:
        single = next((s for s in (self, other) if s.low == s.high), None)
        if single is not None:
            # A single value carries no step, so membership decides instead of the least common multiple.
            inside = single.low in self and single.low in other
            return single if inside else Integers(1, 0)
        return Integers(max(self.low, other.low), min(self.high, other.high), math.lcm(self.step, other.step))

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high and value % self.step == 0

    def __le__(self, other: Integers) -> bool:
        """Subset, decided exactly: the ends lie inside and the step is a multiple of the other's."""
        if self.is_empty:
            return True
        if self.low == self.high:
            return self.low in other
        return other.low <= self.low and self.high <= other.high and self.step % other.step == 0
