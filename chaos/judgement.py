"""A judgement: whether a run kept a promise, the figures that show it, and what broke it in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

#: How many violations are named one by one; the others are counted.
NAMED: Final = 20

Figure: TypeAlias = int | float | str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The checker's result for one promise of DESIGN §9. Number 0: whether the run proves anything at all."""

    number: int
    name: str
    figures: Mapping[str, Figure]
    violations: tuple[str, ...]
    """The first ``NAMED`` violations, a sentence each."""
    total: int
    """How many violations there are."""

    @property
    def kept(self) -> bool:
        """No violation was found."""
        return self.total == 0

    @property
    def verdict(self) -> str:
        """The judgement in a word."""
        return "kept" if self.kept else "BROKEN"


def conclude(number: int, name: str, broken: Iterable[str], figures: Mapping[str, Figure]) -> Judgement:
    """Count all violations but keep only the first few: a broken run of a million events has a million."""
    rest = iter(broken)
    named = tuple(islice(rest, NAMED))
    return Judgement(number, name, figures, named, len(named) + sum(1 for _ in rest))
