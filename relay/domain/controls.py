"""What operators have paused or limited at run time, as values.

Controls are rows of a context's database, so they outlive processes and Redis. The database's clock says when one
has ended: nobody has to be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from relay.domain.errors import InvalidRequest, RelayError
from relay.domain.limits import MAX_KEY_BYTES
from relay.domain.tasks import check_queue, check_type

#: What a control without an end says instead of a time.
ENDLESS: Final = "resumed"
#: A pause or a limit ends within this time, or has no end.
LONGEST: Final = timedelta(days=365)
#: How long an event or a task of a paused type is put off at most. Then a worker looks again.
LOOK_AGAIN: Final = timedelta(minutes=15)
#: The longest time between two starts of one key: for so long its row is kept.
LONGEST_OF_KEY: Final = timedelta(days=1)
#: What stands before the key in the key of a rate. No name has it.
OF_KEY: Final = "\n"
#: The highest limit of how many may run at once.
MOST_AT_ONCE: Final = 100_000


class UnknownControl(RelayError, LookupError):
    """The context has no such subscription, so nothing of it can be paused or limited."""

    code = "UNKNOWN_CONTROL"


class What(StrEnum):
    """What can be paused. Subscriptions and types of tasks can be limited, too."""

    SUBSCRIPTION = "subscription"
    TASK_TYPE = "task_type"
    TASK_QUEUE = "task_queue"
    EVENT_TYPE = "event_type"
    PUBLISHING = "publishing"

    @property
    def words(self) -> str:
        """What people call it."""
        return self.value.replace("_", " ")

    @property
    def limited(self) -> bool:
        """Whether it can be limited."""
        return self in (What.SUBSCRIPTION, What.TASK_TYPE)


class Act(StrEnum):
    """What a control does."""

    PAUSE = "pause"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much may run at once, and the shortest time between two starts. None: as configured.

    ``per_key``: between two starts of one key, and keys do not wait for each other. ``until``: when it ends.
    """

    concurrency: int | None = None
    interval: timedelta | None = None
    per_key: bool = False
    until: datetime | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        """Whether it limits anything."""
        return self.concurrency is not None or self.interval is not None

    def over(self, configured: Limit) -> Limit:
        """This limit, and for what it leaves open the configured one."""
        if not configured:
            return self
        concurrency = configured.concurrency if self.concurrency is None else self.concurrency
        of = configured if self.interval is None else self
        return replace(self, concurrency=concurrency, interval=of.interval, per_key=of.per_key)

    def __str__(self) -> str:
        parts = []
        if self.concurrency is not None:
            parts.append(f"{self.concurrency} at once")
        if self.interval is not None:
            parts.append(f"{rate_of(self.interval)}{' per key' if self.per_key else ''}")
        return ", ".join(parts) or "no limit"


NO_LIMIT: Final = Limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A pause or a limit in force: until when (None: until somebody ends it), why, by whom, since when.

    ``name`` is empty for a context's publishing. ``former``: the limit before this one.
    """

    what: What
    name: str
    act: Act
    until: datetime | None = None
    limit: Limit = NO_LIMIT
    former: Limit = NO_LIMIT
    reason: str | None = None
    by: str
    since: datetime

    @property
    def subject(self) -> str:
        """What it is about, in words."""
        return f"{self.what.words} {self.name}".rstrip()

    def __str__(self) -> str:
        done = "is paused" if self.act is Act.PAUSE else f"is limited to {self.limit}"
        until = f"until {_shown(self.until)}" if self.until is not None else f"until it is {self._ended}"
        why = f": {self.reason}" if self.reason else ""
        return f"{self.subject} {done} by {self.by} since {_shown(self.since)}, {until}{why}"

    @property
    def _ended(self) -> str:
        return ENDLESS if self.act is Act.PAUSE else "lifted"

    def row(self) -> dict[str, Any]:
        """It as the faces show it."""
        return {
            "what": self.what.value,
            "name": self.name,
            "act": self.act.value,
            "until": self.until,
            "limit": str(self.limit) if self.act is Act.LIMIT else None,
            "former": str(self.former) if self.act is Act.LIMIT else None,
            "by": self.by,
            "since": self.since,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls of a context that are in force, as workers look at them: a look costs a dictionary's."""

    paused: Mapping[tuple[What, str], Control] = field(default_factory=dict)
    limits: Mapping[tuple[What, str], Limit] = field(default_factory=dict)

    @classmethod
    def of(cls, controls: Iterable[Control]) -> Controls:
        """Sort them."""
        paused, limits = dict[tuple[What, str], Control](), dict[tuple[What, str], Limit]()
        for it in controls:
            if it.act is Act.PAUSE:
                paused[it.what, it.name] = it
            elif it.limit:
                limits[it.what, it.name] = replace(it.limit, until=it.until)
        return cls(paused, limits)

    def is_paused(self, what: What, name: str = "") -> bool:
        """Whether it is paused."""
        return (what, name) in self.paused

    def limit(self, what: What, name: str) -> Limit:
        """The limit of a subscription or a task type at run time."""
        return self.limits.get((what, name), NO_LIMIT)

    def task(self, task_type: str, queue: str) -> Control | None:
        """The pause of a task, by its type or its queue."""
        if not self.paused:
            return None
        return self.paused.get((What.TASK_TYPE, task_type)) or self.paused.get((What.TASK_QUEUE, queue))

    @property
    def events(self) -> frozenset[str]:
        """The types of events that are not published now."""
        return frozenset(name for what, name in self.paused if what is What.EVENT_TYPE)


#: Nothing is paused or limited.
UNCONTROLLED: Final = Controls()


async def uncontrolled() -> Controls:
    """What is known where nothing can be paused or limited."""
    return UNCONTROLLED


def put_off(control: Control, now: datetime | None = None) -> timedelta:
    """For how long an event or task of a paused type is put off: until the end, or until somebody looks again."""
    if control.until is None:
        return LOOK_AGAIN
    return max(timedelta(seconds=1), min(LOOK_AGAIN, control.until - (now or datetime.now(UTC))))


def check_name(what: What, name: str) -> str:
    """Return the name of what is to be controlled. Raises InvalidRequest or InvalidTask."""
    if what is What.PUBLISHING:
        if name:
            raise InvalidRequest("publishing is paused as a whole, without a name", field="name")
        return name
    if what is What.TASK_TYPE:
        return check_type(name)
    if what is What.TASK_QUEUE:
        return check_queue(name)
    if not 0 < len(name.encode()) <= MAX_KEY_BYTES or "\0" in name:
        raise InvalidRequest(f"must be 1 to {MAX_KEY_BYTES} bytes", field="name")
    return name


def check_limit(what: What, limit: Limit) -> None:
    """Raise InvalidRequest for a limit that cannot be."""
    if not what.limited:
        raise InvalidRequest(f"a {what.words} can be paused, not limited", field="what")
    if limit.concurrency is not None and not 1 <= limit.concurrency <= MOST_AT_ONCE:
        raise InvalidRequest(
            f"must be 1 to {MOST_AT_ONCE}", field="concurrency", hint="pause it to let nothing begin"
        )
    if limit.per_key and (limit.interval is None or limit.interval > LONGEST_OF_KEY):
        raise InvalidRequest("needs a rate of at least 1/1d", field="per_key", hint="such as --rate 10/1m")


def check_end(until: datetime | None, now: datetime) -> None:
    """Raise InvalidRequest for an end that is over, or too far away."""
    if until is not None and not now < until <= now + LONGEST:
        raise InvalidRequest(f"must be later than now, by at most {LONGEST.days} days", field="until")


def rate_of(interval: timedelta) -> str:
    """An interval between two starts as a rate, such as ``10/1s``."""
    seconds = interval.total_seconds()
    for unit, name in ((1, "1s"), (60, "1m"), (3600, "1h")):
        count = unit / seconds
        if count >= 1 and abs(count - round(count)) < 1e-6 * count + 1e-9:
            return f"{round(count)}/{name}"
    return f"1/{seconds:g}s"


def rate_key(what: What, name: str) -> str:
    """The key of a rate in ``task_rates``. Types of tasks have theirs there, and no space in their names."""
    return name if what is What.TASK_TYPE else f"{what.value} {name}"


def rate_of_key(rate: str, key: str | None) -> str:
    """The same for one key. Rows or messages without a key share one. Of a key only its hash is kept."""
    return f"{rate}{OF_KEY}{blake2b((key or '').encode(), digest_size=16).hexdigest()}"


def _shown(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
