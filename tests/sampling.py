"""The fixed sample of a long matrix that `make test` runs; `make soak` runs the whole of it.

The rule: each value of each column occurs at least once, and values occur equally often as far as that allows.
The case with the most values that are new is taken first; of several, the one whose values were used least; of
those, the first. Nothing is left to chance: the same cases give the same sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import pytest

C = TypeVar("C", bound=Sequence[Hashable])


def sample(cases: Iterable[C]) -> list[C]:
    """The cases that `make test` runs, in the order of all."""
    every, used, chosen = list(cases), Counter[tuple[int, Hashable]](), list[int]()
    missing = {value for case in every for value in enumerate(case)}

    def worth(place: int) -> tuple[int, int, int]:
        values = set(enumerate(every[place]))
        return len(values & missing), -sum(used[value] for value in values), -place

    while missing:
        best = max((place for place in range(len(every)) if place not in chosen), key=worth)
        chosen.append(best)
        used.update(enumerate(every[best]))
        missing -= set(enumerate(every[best]))
    return [every[place] for place in sorted(chosen)]


def marked(cases: Iterable[C], *, whole: bool = False) -> list[object]:
    """All cases, as parameters; those outside the sample have the mark ``soak``.

    ``whole``: a case is one parameter, not one for each of its columns.
    """
    every = list(cases)
    kept = sample(every)
    return [
        pytest.param(*([case] if whole else case), marks=() if case in kept else pytest.mark.soak)
        for case in every
    ]
