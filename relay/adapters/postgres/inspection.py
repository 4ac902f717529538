"""What a context's database says about itself, as values. Reads only, and changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege, UndefinedColumn, UndefinedTable

from relay.adapters.postgres.failures import reached, reaching
from relay.adapters.postgres.grants import FUNCTIONS, OF_FLEET, TABLES, beyond
from relay.adapters.postgres.pool import AsyncConnection, Connection, query
from relay.adapters.postgres.revisions import MigrationStatus, compared
from relay.domain.disclosure import first_line
from relay.domain.errors import ConfigurationError

_SETTINGS: Final = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "autovacuum",
    "track_counts",
    "server_version",
    "server_version_num",
)
#: From so long on, an idle session in a transaction, and a transaction, are too old.
_IDLE: Final = timedelta(minutes=1)
_OLD: Final = timedelta(minutes=5)
#: From so long on, a session of the relay waits too long for a lock.
_WAITING: Final = timedelta(seconds=10)
_CONNECT_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class IdleSession:
    """A session whose transaction is open and does nothing."""

    name: str
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """A session of the relay that waits for a lock, and who holds it: for how many seconds (None: not known).

    ``blocker`` 0: a prepared transaction.
    """

    name: str
    pid: int
    seconds: float
    blocker: int
    holder: str
    held_seconds: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps removed row versions: for how long (None: not known), and for how many transactions."""

    name: str
    seconds: float | None
    transactions: int


@dataclass(frozen=True, slots=True)
class TableState:
    """A table of the relay: estimated rows, dead row versions, and whether autovacuum may clean it up."""

    name: str
    rows: int
    dead: int
    autovacuum: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """What `relay health` asks.

    ``ahead``: how far this machine's clock is ahead of the database's, in seconds, exact to ``exact``.
    ``room``: how many sessions the server allows to roles that are not superusers; ``ours``: how many of the
    ``sessions`` are the relay's.
    """

    tables: MigrationStatus
    settings: Mapping[str, str]
    ahead: float = 0.0
    exact: float = 0.0
    sessions: int = 0
    ours: int = 0
    room: int = 100

    @property
    def major(self) -> int:
        """The major version of the server."""
        return int(self.settings["server_version_num"]) // 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseDetails:
    """What `relay doctor` asks besides ``state``.

    ``pooler``: what is between us and the server: "" for nothing, "transaction" for a pooler that changes the
    session between transactions, "pooler" for another. ``hidden``: how many sessions of others cannot be seen.
    ``blocked``: sessions of the relay that wait for a lock.
    ``lacking``: rights that our role needs and does not have. ``beyond``: those of other roles that no producer
    needs, by role. ``leader``: the scheduler that leads, if one does.
    ``paused``: cron jobs that an operator has paused. ``role``: ours.
    """

    state: DatabaseState
    pooler: str = ""
    idle: Sequence[IdleSession] = ()
    hidden: int = 0
    blocked: Sequence[Blocked] = ()
    holders: Sequence[Holder] = ()
    tables: Sequence[TableState] = ()
    lacking: Sequence[str] = ()
    beyond: Mapping[str, Sequence[str]] = field(default_factory=dict)
    leader: str | None = None
    paused: Sequence[str] = ()
    role: str = "ROLE"


async def look(url: str) -> DatabaseState:
    """Ask what `relay health` asks. Raises DatabaseUnreachable."""
    async with await _connect(url) as conn:
        with reached(), _allowed(conn.info.user):
            return await _state(conn)


async def place(url: str) -> tuple[Any, ...]:
    """A value that differs if two addresses lead to different tables. Raises DatabaseUnreachable."""
    async with await _connect(url) as conn:
        with reached():
            [found] = await query(conn, "server/place")
    return tuple(found)


async def look_closely(
    url: str, *, idle: timedelta = _IDLE, old: timedelta = _OLD, waiting: timedelta = _WAITING
) -> DatabaseDetails:
    """Ask everything. Raises DatabaseUnreachable.

    ``idle``, ``old``, ``waiting``: from how long on an idle session in a transaction, a transaction, and a session
    that waits for a lock are reported.
    """
    async with await _connect(url) as conn:
        with reached(), _allowed(conn.info.user):
            return await _details(conn, url, idle, old, waiting)


@contextmanager
def _allowed(role: str) -> Iterator[None]:
    """Turn a missing right into ConfigurationError."""
    try:
        yield
    except InsufficientPrivilege as error:
        raise ConfigurationError(first_line(error), hint=granting(role)) from error


def granting(role: str) -> str:
    """What gives a role of the fleet its rights."""
    return f"run as the owner: relay db grant --relay {shlex.quote(role)}"


async def _connect(url: str) -> Connection:
    with reaching():
        conn: Connection = await AsyncConnection.connect(
            make_conninfo(url, connect_timeout=_CONNECT_TIMEOUT_S),
            autocommit=True,
            application_name="jetrelay-health",
        )
    conn.prepare_threshold = None
    return conn


async def _state(conn: Connection) -> DatabaseState:
    begin = datetime.now(UTC)
    [(clock, _, sessions, ours, room)] = await query(conn, "server/here")
    end = datetime.now(UTC)
    return DatabaseState(
        tables=compared(await _first(conn, "server/revision")),
        settings=dict(await query(conn, "server/settings", names=list(_SETTINGS))),
        ahead=(begin + (end - begin) / 2 - clock).total_seconds(),
        exact=(end - begin).total_seconds() / 2,
        sessions=sessions,
        ours=ours,
        room=room,
    )


async def _first(conn: Connection, name: str) -> str | None:
    """The first value that a statement finds. None also in a database without our tables."""
    try:
        rows = await query(conn, name)
    except UndefinedTable:
        return None
    return rows[0][0] if rows else None


async def _details(
    conn: Connection, url: str, idle: timedelta, old: timedelta, waiting: timedelta
) -> DatabaseDetails:
    wanted = {name: rights.relay.split(", ") for name, rights in TABLES.items() if rights.relay}
    pairs = [(table, privilege) for table, privileges in wanted.items() for privilege in privileges]
    sessions = await query(conn, "server/sessions", longer=idle)
    return DatabaseDetails(
        role=conn.info.user,
        state=await _state(conn),
        pooler=await _pooler(conn, url),
        idle=[IdleSession(*row[:3]) for row in sessions if row[1]],
        hidden=sum(row[3] for row in sessions),
        blocked=[Blocked(*row) for row in await query(conn, "server/blocked", longer=waiting)],
        holders=[Holder(*row) for row in await query(conn, "server/horizon", longer=old)],
        tables=[TableState(*row) for row in await query(conn, "server/tables", tables=list(TABLES))],
        lacking=[
            row[0]
            for row in await query(
                conn,
                "server/rights",
                tables=[table for table, _ in pairs],
                privileges=[privilege for _, privilege in pairs],
                functions=[name for name, rights in FUNCTIONS.items() if rights.relay],
            )
        ],
        beyond=beyond(await query(conn, "server/grants", tables=list(TABLES), of_fleet=OF_FLEET)),
        leader=await _leader(conn),
        paused=await _paused(conn),
    )


async def _leader(conn: Connection) -> str | None:
    """The scheduler that leads. If our role may not ask this, it is among the rights that it lacks."""
    with suppress(InsufficientPrivilege):
        return await _first(conn, "schedule/lease_holder")
    return None


async def _paused(conn: Connection) -> Sequence[str]:
    """The cron jobs that are paused; none if our role may not ask, or if the tables are older."""
    with suppress(InsufficientPrivilege, UndefinedColumn, UndefinedTable):
        return [name for (name,) in await query(conn, "schedule/paused_jobs")]
    return ()


async def _pooler(conn: Connection, url: str) -> str:
    """What is between us and the server. A pooler cannot tell us the number of the server's process beforehand."""
    one = await _process(conn)
    if conn.info.backend_pid == one:
        return ""
    async with await _connect(url) as other:
        # Both connections are open. Only a pooler in transaction mode gives both the same session.
        shared = {one} & {await _process(other) for _ in range(5)}
    return "transaction" if shared or await _process(conn) != one else "pooler"


async def _process(conn: Connection) -> Any:
    [(_, process, *_)] = await query(conn, "server/here")
    return process
