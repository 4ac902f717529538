"""How many connections a process has to a server: for all contexts, statements and functions together.

PostgreSQL has room for a few hundred sessions, and each session belongs to one database. So a process with many
contexts keeps only the connections that it uses. If there is no room for a new connection, it closes the one that
was unused for longest.

A new session costs the server more than most handlers do. So whoever has connections of its own in use waits a
moment for one of them before it closes what others used just now.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from relay.concurrency import end
from relay.domain.errors import ConnectionsBusy

#: How many connections a process has to a server by default.
MOST: Final = 64
#: With fewer a process cannot run a function and settle its claim.
LEAST: Final = 2
#: Functions leave this part of the connections (a quarter) to the relay's own statements, which renew and settle
#: claims. A single database leaves the same part to others, because it or its functions may hang.
_KEPT_BACK: Final = 4
#: A connection that was used so many seconds ago is likely to be used again soon.
_LATELY_S: Final = 1.0


class Kept(Protocol):
    """A connection that waits for its next user."""

    @property
    def usable(self) -> bool:
        """Whether it is open and has no input."""
        ...

    def finish(self) -> None:
        """Close it at once, in any thread."""
        ...


@dataclass(eq=False, slots=True)
class Owner:
    """A user of connections, all to one ``database``. ``lent``: they are lent to functions.

    ``idle``: its unused connections, each with the time since when. The one that was used last is last. ``used``:
    how many it has taken and not given back.
    """

    database: _Parts = ()
    lent: bool = False
    closed: bool = False
    used: int = 0
    idle: deque[tuple[float, Kept]] = field(default_factory=deque)

    @property
    def kind(self) -> _Kind:
        """What limits tell owners apart by."""
        return self.database, self.lent


#: What tells a server, or a database, from others.
_Parts: TypeAlias = tuple[str, ...]
#: A database, and whether connections to it are lent to functions.
_Kind: TypeAlias = tuple[_Parts, bool]
#: Tells which connections a limit counts.
_Counts: TypeAlias = Callable[[_Kind], bool]
#: A connection; or None, which is room to open one.
_Found: TypeAlias = "Kept | None"


@dataclass(eq=False, slots=True)
class _Waiter:
    """Who waits. ``patient``: one of its own may come back, so it closes none that others have just used."""

    owner: Owner
    found: Future[_Found] = field(default_factory=Future)
    patient: bool = True


class Budget:
    """The connections of a process to one server. All methods may be called in any thread.

    A caller that takes a connection, or room for one, gives it back. If there is no room, the caller queues, for
    ``wait`` seconds at most. In the first ``patience`` seconds it closes no connection that others have used
    lately, unless it has none of its own. A connection that was unused for ``idle`` seconds is closed.
    """

    def __init__(self, most: int = MOST, *, wait: float = 10.0, idle: float = 10.0, patience: float = 0.1) -> None:
        self.wait, self._idle, self._patience = wait, idle, min(patience, wait)
        self._limit(most)
        #: Whether the server has refused since `fit`; whether the limit is still below the one before.
        self._refused = self._growing = False
        self._lock = threading.Lock()
        self._owners: set[Owner] = set()
        self._databases: set[_Parts] = set()
        self._open = Counter[_Kind]()
        self._waiting: list[_Waiter] = []
        self._attending = 0
        self._keeper: asyncio.Task[None] | None = None

    def _limit(self, most: int) -> None:
        self.most = most
        #: Limit of all functions together; also of one database, if there are several.
        kept_back = max(1, most // _KEPT_BACK)
        self.most_alike = max(1, most - kept_back)
        #: Limit of the functions of one database, if there are several. So its own statements have a quarter, too.
        self._most_lent = max(1, most - 2 * kept_back)

    def fit(self, most: int) -> None:
        """Allow so many connections from now on. After a refusal each call allows twice as many, up to ``most``.

        Unused connections above the limit are closed now, others when they are given back.
        """
        with self._lock:
            grown = self.most if self._refused else 2 * self.most
            self._growing = self._growing and grown < most
            self._limit(max(LEAST, min(most, grown) if self._growing else most))
            self._refused = False
            self._shrink()
            self._serve()

    def refused(self) -> None:
        """The server has no room: close all unused connections, and have half as many until `fit` lets it grow."""
        with self._lock:
            for owner in self._owners:
                while owner.idle:
                    self._finish(owner)
            if not self._refused:  # else it has given way already: many callers are refused at once
                self._refused = self._growing = True
                self._limit(max(LEAST, min(self.most, self.open) // 2))

    def _shrink(self) -> None:
        while self.open > self.most and self._evict([lambda _: True]):
            pass

    def owner(self, url: str = "", *, lent: bool = False) -> Owner:
        """Begin an account with the database at an address. `close` ends it."""
        owner = Owner(_parts(url, "dbname", "options"), lent)
        with self._lock:
            self._owners.add(owner)
            self._databases.add(owner.database)
        return owner

    @property
    def open(self) -> int:
        """How many connections there are. Connections that are being made count, too."""
        return self._open.total()

    # --- take and give ---

    async def take(self, owner: Owner) -> _Found:
        """Take a connection, or room for a new one: None. Raises ConnectionsBusy."""
        waiter = self._take(owner)
        if not isinstance(waiter, _Waiter):
            return waiter
        future = asyncio.wrap_future(waiter.found)
        try:
            for seconds in self._waits():
                await asyncio.wait([future], timeout=seconds)
                if future.done():
                    break
                self._urge(waiter)
        except asyncio.CancelledError:
            self._renounce(waiter)
            raise
        return self._outcome(waiter)

    def take_in_thread(self, owner: Owner) -> _Found:
        """Do what `take` does, but wait in this thread."""
        waiter = self._take(owner)
        if not isinstance(waiter, _Waiter):
            return waiter
        try:
            for seconds in self._waits():
                with suppress(TimeoutError):
                    return waiter.found.result(seconds)
                self._urge(waiter)
        except BaseException:  # a time limit, for one, interrupts the thread
            self._renounce(waiter)
            raise
        return self._outcome(waiter)

    def _waits(self) -> tuple[float, float]:
        """The seconds of a patient wait, and of the rest."""
        return self._patience, self.wait - self._patience

    def _outcome(self, waiter: _Waiter) -> _Found:
        if waiter.found.cancel():
            raise self._busy(waiter.owner)
        return waiter.found.result()

    def _renounce(self, waiter: _Waiter) -> None:
        """Stop waiting. If a connection or room came a moment before, the next caller gets it."""
        if not waiter.found.cancel():
            self.give(waiter.owner, waiter.found.result())

    def _urge(self, waiter: _Waiter) -> None:
        """Let it close any unused connection from now on."""
        with self._lock:
            waiter.patient = False
            self._serve()

    def give(self, owner: Owner, kept: _Found) -> None:
        """Give a connection back. None: the connection is closed, so give its room back."""
        with self._lock:
            self._put(owner, kept)
            self._serve()

    def _take(self, owner: Owner) -> _Found | _Waiter:
        with self._lock:
            # This overtakes no waiting caller: none of them could use this room or this idle connection.
            waiter = _Waiter(owner)
            for found in self._find(waiter):
                return found
            self._waiting.append(waiter)
            return waiter

    def _put(self, owner: Owner, kept: _Found) -> None:
        owner.used -= 1
        if kept is not None and (owner.closed or self.open > self.most):
            kept.finish()
            kept = None
        if kept is None:
            self._open[owner.kind] -= 1
        else:
            owner.idle.append((time.monotonic(), kept))

    def _serve(self) -> None:
        """Give each caller that waits what there is for it now, first come, first served."""
        self._waiting = [it for it in self._waiting if not it.found.cancelled()]
        blocked = set[tuple[Owner, bool]]()
        for waiter in list(self._waiting):
            if (waiter.owner, waiter.patient) in blocked:
                continue
            if not (found := self._find(waiter)):
                blocked.add((waiter.owner, waiter.patient))
                continue
            self._waiting.remove(waiter)
            if waiter.found.set_running_or_notify_cancel():
                waiter.found.set_result(found[0])
            else:
                self._put(waiter.owner, found[0])

    def _find(self, waiter: _Waiter) -> list[_Found]:
        """Take a connection or room, if there is one: an unused one of the owner, or room that may be made."""
        owner = waiter.owner
        while owner.idle:
            _, kept = owner.idle.pop()
            if kept.usable:
                owner.used += 1
                return [kept]
            kept.finish()
            self._open[owner.kind] -= 1
        full = self._full(owner)
        fresh = not (waiter.patient and owner.used)
        if full and not self._evict([counts for counts, _ in full], fresh=fresh):
            return []
        owner.used += 1
        self._open[owner.kind] += 1
        return [None]

    def _limits(self, owner: Owner) -> Iterator[tuple[_Counts, int]]:
        """Yield the limits for an owner: which connections each counts, and how many there may be."""
        yield lambda _: True, self.most
        if owner.lent:
            yield lambda kind: kind[1], self.most_alike
        if len(self._databases) > 1:
            yield lambda kind: kind[0] == owner.database, self.most_alike
            if owner.lent:
                yield lambda kind: kind == owner.kind, self._most_lent

    def _full(self, owner: Owner) -> list[tuple[_Counts, int]]:
        """The limits for an owner that are reached."""
        open_now = self._open.items()
        return [
            (counts, most)
            for counts, most in self._limits(owner)
            if sum(number for kind, number in open_now if counts(kind)) >= most
        ]

    def _evict(self, full: Sequence[_Counts], *, fresh: bool = True) -> bool:
        """Make room in limits that are reached: close an unused connection that counts in all of them.

        It is the one that was unused for longest. If all were used lately, it is one of the owner that has most,
        who can best spare it; if they may not be ``fresh``, none is closed.
        """
        idle = [it for it in self._owners if it.idle and all(counts(it.kind) for counts in full)]
        longest = min(idle, key=lambda it: it.idle[0][0], default=None)
        if longest is None:
            return False
        if longest.idle[0][0] > time.monotonic() - _LATELY_S:
            if not fresh:
                return False
            longest = max(idle, key=lambda it: (it.used + len(it.idle), -it.idle[0][0]))
        self._finish(longest)
        return True

    def _finish(self, owner: Owner) -> None:
        _, kept = owner.idle.popleft()
        kept.finish()
        self._open[owner.kind] -= 1

    def _busy(self, owner: Owner) -> ConnectionsBusy:
        with self._lock:
            most = min((most for _, most in self._full(owner)), default=self.most)
        return ConnectionsBusy(
            f"all {most} connections that this work may have to the server were in use for {self.wait:g} s",
            hint="raise max_connections, or run more processes",
        )

    # --- unused connections ---

    def close_idle(self, unused_for: float = 0.0) -> None:
        """Close connections that were unused for so many seconds."""
        before = time.monotonic() - unused_for
        with self._lock:
            for owner in self._owners:
                while owner.idle and owner.idle[0][0] <= before:
                    self._finish(owner)

    def close(self, owner: Owner) -> None:
        """Close an owner's unused connections now, and its other connections as soon as they are given back."""
        with self._lock:
            owner.closed = True
            self._owners.discard(owner)
            while owner.idle:
                self._finish(owner)

    def attend(self) -> None:
        """Begin to close unused connections, on the running event loop. `leave` ends it."""
        self._attending += 1
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())

    async def leave(self) -> None:
        """Undo one `attend`. When every `attend` has been undone, unused connections stay open."""
        self._attending -= 1
        if not self._attending and self._keeper is not None:
            await end(self._keeper)
            self._keeper = None

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._idle / 4)
            self.close_idle(self._idle)


class Budgets:
    """The budgets of a process, one for each server."""

    def __init__(self, most: int | None = MOST) -> None:
        """``most``: for each server. None: the server's size decides, see `relay.adapters.postgres.fitting`."""
        self._most = most or MOST
        self._budgets: dict[_Parts, Budget] = {}

    def of(self, url: str) -> Budget:
        """The budget of the server that an address leads to."""
        return self._budgets.setdefault(server_of(url), Budget(self._most))


def server_of(url: str) -> tuple[str, ...]:
    """What tells the server of an address from others."""
    return _parts(url, "service", "hostaddr", "host", "port")


def _parts(url: str, *names: str) -> _Parts:
    """The named parts of an address. They are the same for all addresses of one server, or of one database."""
    try:
        parts: Mapping[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return (url,)
    return tuple(str(parts.get(name, "")) for name in names)
