"""The queues in Redis as operators see them: how many jobs each has, and what the jobs are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any


class JobState(Enum):
    """Which jobs of a queue. ``dead``: given up by Dramatiq. ``delayed``: to be begun later."""

    DEAD = "dead"
    DELAYED = "delayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """How many jobs a queue has. ``in_flight``: jobs that workers have fetched and not acknowledged."""

    name: str
    waiting: int
    delayed: int
    in_flight: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in a queue. ``at``: when it died, or when it is due. ``share``: the part of the queue that it is in.

    ``args``: names and ids. A job that cannot be read has an ``id`` only.
    """

    id: str
    actor: str | None = None
    share: str | None = None
    created_at: datetime | None = None
    at: datetime | None = None
    args: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs of a queue, how many there are in all, and where the next page begins; None at the end."""

    items: Sequence[Job]
    total: int
    next: str | None
