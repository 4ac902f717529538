"""How much each measure does: a smoke of seconds, the default, and what the figures are promised for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much to do.

    ``events``: the backlog of a drain. ``megabytes``: that of large ones. ``messages``, ``tasks``: to be
    handled. ``samples``: of a latency. ``inserts``: transactions of one event. ``unpublished``: backlogs for which
    a claim is timed, beside ``published`` other rows. ``minutes``: how long a snapshot is held. ``growth``: events
    that a worker publishes while its memory is watched. ``idle``: seconds for which an idle fleet is watched,
    ``settle``: after so many of a crowd. ``crowds``: contexts, worker processes, subscriptions of each context.
    ``archived``: events that leave for the archive.
    ``busy``: contexts with ``backlog`` events each beside a quiet one, and ``publishers``, their worker processes.
    """

    events: int
    megabytes: int
    messages: int
    tasks: int
    samples: int
    inserts: int
    unpublished: tuple[int, ...]
    published: int
    minutes: float
    growth: int
    idle: float
    settle: float
    crowds: tuple[tuple[int, int, int], ...]
    busy: int
    backlog: int
    archived: int
    publishers: int = 1


QUICK: Final = Sizes(
    events=2_000,
    megabytes=4,
    messages=400,
    tasks=400,
    samples=10,
    inserts=100,
    unpublished=(1_000, 5_000),
    published=2_000,
    minutes=0.1,
    growth=5_000,
    idle=2,
    settle=2,
    crowds=((2, 1, 1),),
    archived=2_000,
    busy=3,
    backlog=1_000,
)
DEFAULT: Final = Sizes(
    events=100_000,
    megabytes=200,
    messages=20_000,
    tasks=20_000,
    samples=200,
    inserts=1_000,
    unpublished=(10_000, 30_000, 100_000, 300_000),
    published=500_000,
    minutes=1,
    growth=300_000,
    idle=20,
    settle=20,
    crowds=((1, 1, 1), (5, 8, 1), (20, 1, 1), (50, 1, 1), (50, 4, 1), (1, 1, 50), (5, 1, 10)),
    archived=200_000,
    busy=20,
    backlog=10_000,
)
FULL: Final = Sizes(
    events=100_000,
    megabytes=200,
    messages=50_000,
    tasks=50_000,
    samples=500,
    inserts=3_000,
    unpublished=(10_000, 30_000, 100_000, 300_000, 1_000_000),
    published=5_000_000,
    minutes=10,
    growth=1_000_000,
    idle=60,
    settle=60,
    crowds=((1, 1, 1), (5, 8, 1), (20, 1, 1), (50, 1, 1), (50, 4, 1), (1, 1, 50), (5, 1, 10), (50, 1, 10)),
    archived=1_000_000,
    busy=20,
    backlog=60_000,
)
