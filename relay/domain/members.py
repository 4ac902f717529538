"""The members of a fleet as values: worker processes and their supervisors, as they describe themselves."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from relay.domain.subject import command_name

#: How often a member says that it is there, in seconds.
BEAT_INTERVAL_S: Final = 3.0
#: A member that was silent for this long is lost, in seconds: killed, hanging, or cut off from Redis.
LOST_AFTER_S: Final = 10.0
#: A member that was silent for this long is forgotten, in seconds.
FORGOTTEN_AFTER_S: Final = 600.0


class State(Enum):
    """What a member does now."""

    STARTING = "starting"
    WORKING = "working"
    #: It has started, and NATS does not answer.
    WAITING = "waiting"
    #: It finishes the jobs that it has begun, and takes no more.
    ENDING = "ending"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a worker does. ``doing``: how many jobs of each queue, subscription or cron job run, by name.

    ``busy`` of the ``threads`` for handlers and tasks are taken. Coroutines count as threads: the busiest
    subscription decides. ``waiting`` jobs are fetched and not begun.
    """

    threads: int = 0
    busy: int = 0
    waiting: int = 0
    doing: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewReport:
    """What a supervisor does: it runs ``running`` workers and wants ``wanted``, between ``least`` and ``most``.

    ``why``: the reason for the last decision. ``crashes``: how many of its workers ended by themselves.
    """

    least: int
    most: int
    wanted: int
    running: int
    why: str = ""
    crashes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process as it describes itself. No other process ever has its ``id``.

    ``place``: within it a ``pid`` names one process; "" if unknown. ``command``: the process of the `dramatiq`
    command that a worker belongs to. ``fleet``: the id of the supervisor that started it; None if it was started
    in another way. ``up_seconds``: for how long it has run. ``publishes``: whether it takes jobs that publish.
    ``listens``: the contexts whose hints it hears; it publishes their events by itself. ``release``: of the
    application. ``handles``: which versions it has functions for, see `digest_of`.
    """

    id: str
    kind: str
    host: str
    pid: int
    place: str = ""
    command: int | None = None
    fleet: str | None = None
    version: str = ""
    state: State = State.STARTING
    up_seconds: float = 0.0
    publishes: bool = False
    listens: list[str] = field(default_factory=list)
    release: str = ""
    handles: str = ""
    usage: Usage | None = None
    crew: CrewReport | None = None

    @property
    def release_shown(self) -> str:
        """The release of jetrelay, and that of the application if it has one."""
        return f"{self.version} {self.release}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A member, and for how long it has been silent, by the clock of Redis."""

    member: Member
    silent_seconds: float

    @property
    def state(self) -> State:
        """What it says that it does now, unless it is lost."""
        return State.LOST if self.silent_seconds > LOST_AFTER_S else self.member.state


#: A member says of so many versions which it handles. With more it says `ANY`.
_MOST_HANDLED: Final = 1_500
#: It may handle any version.
ANY: Final = "*"
_MARK_BYTES: Final = 4


def handled_name(context: str, subscription: str, kind: str, version: int) -> str:
    """The name of one version of an event type or command, for the functions of one subscription."""
    return f"{context}/{subscription} {kind} v{version}"


def handled_names(
    context: str, subscription: str, event_type: str | None, subject: str, version: int
) -> list[str]:
    """The names of a message's version: by its type, and by its command if its subject is one of commands."""
    kinds = {event_type or "", command_name(subject) or ""} - {""}
    return [handled_name(context, subscription, it, version) for it in sorted(kinds)]


def digest_of(names: Collection[str]) -> str:
    """What a member tells of the versions that it handles: a mark of four bytes for each, in base64."""
    if len(names) > _MOST_HANDLED:
        return ANY
    return b64encode(b"".join(sorted(map(_mark, names)))).decode()


def handles(digest: str, name: str) -> bool:
    """Whether a digest has a version. One that nobody can read has none."""
    if digest == ANY:
        return True
    try:
        marks = b64decode(digest, validate=True)
    except ValueError:
        return False
    return _mark(name) in {marks[at : at + _MARK_BYTES] for at in range(0, len(marks), _MARK_BYTES)}


def _mark(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_MARK_BYTES).digest()


def read_member(written: Any) -> Member:
    """Read what a member wrote. It may be of another release, so unknown fields are ignored.

    Raises TypeError, ValueError and KeyError for anything else.
    """
    values = _fields(Member, written)
    values["state"] = State(written["state"])
    values["listens"] = [str(it) for it in written.get("listens", ())]
    values |= {name: str(values[name]) for name in ("release", "handles") if name in values}
    for name, kind in (("usage", Usage), ("crew", CrewReport)):
        values[name] = None if written.get(name) is None else kind(**_fields(kind, written[name]))
    return Member(**values)


def _fields(kind: type[Any], written: Any) -> dict[str, Any]:
    if not isinstance(written, dict):
        raise TypeError(f"a {kind.__name__.lower()} is an object")
    names = {it.name for it in fields(kind)}
    return {name: value for name, value in written.items() if name in names}


def listener_of(context: str, publishers: Collection[str]) -> str | None:
    """Return the id of the one that listens to a context; None if nobody publishes.

    All agree who that is. When a member comes or goes, only the contexts that it gets or had change hands.
    """
    return max(publishers, key=lambda id: blake2b(f"{id} {context}".encode()).digest(), default=None)


def busy_part(usages: list[Usage]) -> float | None:
    """The part of the workers' threads that are busy; None if they have no threads."""
    threads = sum(it.threads for it in usages)
    return sum(it.busy for it in usages) / threads if threads else None
