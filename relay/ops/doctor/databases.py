"""Checks of a context's database. ``place`` names it, such as ``postgresql sea``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from relay.adapters.postgres.inspection import DatabaseDetails, DatabaseState, granting
from relay.domain.backlogs import Brake, FullInbox
from relay.domain.findings import Finding, error, unknown, warning

#: The oldest major version that this release is tested with.
TESTED: Final = 15
#: A clock that differs by more seconds is a finding. Events of more than 60 s in the future are refused.
CLOCK_S: Final = 5.0
_OFF: Final = {
    "fsync": "a crash of the machine loses or damages what was committed",
    "full_page_writes": "a crash of the machine may damage the tables",
    "synchronous_commit": "a crash loses the last transactions that were committed",
}
_CLEANING: Final = {
    "autovacuum": "dead row versions are not removed: tables grow, and claims become slow",
    "track_counts": "autovacuum cannot know what there is to remove",
}
#: A table with more dead row versions than this, and more than rows, is not cleaned up.
_MANY_DEAD: Final = 50_000
#: How a role is shown that may write to every table of the server.
ALL_TABLES: Final = "all tables"
#: How much of the sessions may be in use.
_FULL: Final = 0.8


def tables(place: str, state: DatabaseState) -> Iterator[Finding]:
    """The tables are those of this release."""
    if state.tables.pending:
        lacking = ", ".join(state.tables.pending)
        yield error("TABLES_OLD", place, f"its tables lack {lacking}", "run: relay db upgrade")


def commits_last(place: str, state: DatabaseState) -> Iterator[Finding]:
    """Committed transactions survive a crash."""
    for name, what in _OFF.items():
        if state.settings.get(name) == "off":
            yield warning("COMMITS_MAY_BE_LOST", place, f"{name} is off: {what}", f"set {name} = on")


def version(place: str, state: DatabaseState) -> Iterator[Finding]:
    """The version is one that was tested."""
    if state.major < TESTED:
        found = state.settings["server_version"]
        yield warning(
            "DATABASE_OLD",
            place,
            f"PostgreSQL {found} is older than the tested versions: {TESTED}",
            "upgrade the server",
        )


def clock(place: str, state: DatabaseState) -> Iterator[Finding]:
    """This machine and the server have the same time."""
    if finding := skewed(place, state.ahead, state.exact):
        yield finding


def skewed(place: str, ahead: float, exact: float) -> Finding | None:
    """A finding if two clocks differ for certain. ``ahead`` is in seconds and exact to ``exact``."""
    if abs(ahead) - exact <= CLOCK_S:
        return None
    text = f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    return warning("CLOCKS_DIFFER", place, text, "let NTP set both: an event of more than 60 s ahead is refused")


def full(place: str, brake: Brake, inboxes: Sequence[FullInbox]) -> Iterator[Finding]:
    """Outbox and inboxes have room for more."""
    remedy = "find out why it does not get smaller: docs/how-to/backpressure.md"
    if brake.braking:
        yield warning("OUTBOX_FULL", place, str(brake), remedy)
    for inbox in inboxes:
        yield warning("INBOX_FULL", place, str(inbox), remedy)


CHECKS: Final = (tables, commits_last, version, clock)

# --- a closer look ---


def rights(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """Our role may do what it must."""
    if details.lacking:
        first = ", ".join(details.lacking[:4])
        more = f" and {len(details.lacking) - 4} more" if len(details.lacking) > 4 else ""
        yield error("RIGHTS_MISSING", place, f"the role lacks {first}{more}", granting(details.role))


def others_rights(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """No role but the owner's and the fleet's may write more than a producer does."""
    for role, rights in details.beyond.items():
        first = ", ".join(rights[:4])
        more = f" and {len(rights) - 4} more" if len(rights) > 4 else ""
        text = f"the role {role} may do more than a producer: {first}{more}"
        yield warning("RIGHTS_BEYOND", place, text, _less(role, rights))


def _less(role: str, rights: Sequence[str]) -> str:
    if any(it.endswith(ALL_TABLES) for it in rights):
        return f"REVOKE pg_write_all_data FROM {role}"
    if role == "PUBLIC":
        tables = ", ".join(dict.fromkeys(it.partition(" on ")[2].partition(" ")[0] for it in rights))
        return f"run as the owner: REVOKE ALL ON {tables} FROM PUBLIC"
    return f"run as the owner: relay db grant --application {shlex.quote(role)}"


def vacuum(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """Dead row versions are removed."""
    for name, what in _CLEANING.items():
        if details.state.settings.get(name) == "off":
            yield warning("NOT_VACUUMED", place, f"{name} is off: {what}", f"set {name} = on")
    for table in details.tables:
        if not table.autovacuum:
            yield warning(
                "NOT_VACUUMED",
                place,
                f"autovacuum is off for {table.name}",
                f"ALTER TABLE {table.name} RESET (autovacuum_enabled)",
            )
        elif table.dead > max(_MANY_DEAD, table.rows):
            text = f"{table.name} has {table.dead} dead row versions and about {table.rows} rows"
            yield warning("NOT_VACUUMED", place, text, f"VACUUM {table.name}; see OLD_SNAPSHOT")


def snapshots(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """No old snapshot keeps removed row versions."""
    for holder in details.holders:
        since = "" if holder.seconds is None else f" for {_minutes(holder.seconds)}"
        text = f"{holder.name} keeps what {holder.transactions} transactions removed{since}"
        yield warning("OLD_SNAPSHOT", place, f"{text}: claims slow down", "end it, or drop the slot")


def idle_sessions(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """No transaction is left open: it may hold the lock of a key, which then publishes nothing."""
    for session in details.idle:
        text = f"{session.name} (process {session.pid}) has done nothing in its transaction"
        remedy = f"correct that program; SELECT pg_terminate_backend({session.pid}) ends it"
        yield warning("IDLE_IN_TRANSACTION", place, f"{text} for {_minutes(session.seconds)}", remedy)
    if details.hidden:
        yield unknown(
            "SESSIONS_HIDDEN",
            place,
            f"{details.hidden} sessions of other roles cannot be seen",
            "GRANT pg_read_all_stats to this role, so that they are checked",
        )


def blocked(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """No session of the relay waits for a lock, such as that of a migration on a table of a handler."""
    for it in details.blocked:
        since = "" if it.held_seconds is None else f", whose transaction began {_minutes(it.held_seconds)} ago"
        who = f"{it.holder} (process {it.blocker}){since}" if it.blocker else "a prepared transaction"
        text = f"{it.name} (process {it.pid}) has waited for {_minutes(it.seconds)} for a lock of {who}"
        ended = f"wait for it; SELECT pg_terminate_backend({it.blocker}) ends it"
        remedy = ended if it.blocker else "see pg_prepared_xacts"
        yield warning("SESSION_BLOCKED", place, text, remedy)


def pooler(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """No pooler changes the session between transactions: LISTEN and prepared statements need their own."""
    if details.pooler == "transaction":
        yield error(
            "POOLER_MODE",
            place,
            "there is a pooler in transaction mode: LISTEN, prepared statements and settings get lost",
            "its address belongs in pooler_url, the server's own in database_url",
        )
    elif details.pooler:
        yield warning(
            "POOLER_MODE",
            place,
            "there is a pooler, probably in session mode",
            "relay db upgrade needs the server's own address; one in transaction mode belongs in pooler_url",
        )


def same_place(place: str, pooled: tuple[object, ...], direct: tuple[object, ...]) -> Iterator[Finding]:
    """The pooler leads to the tables that ``database_url`` leads to."""
    if pooled != direct:
        yield error(
            "POOLER_DIFFERS",
            place,
            "pooler_url leads to other tables than database_url, or to none",
            "give the pooler the same server and database, and the schema as its search_path",
        )


def sessions(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """There is room for more sessions."""
    if details.state.sessions > _FULL * details.state.room:
        found = details.state
        text = f"{found.sessions} of {found.room} sessions are in use, {found.ours} of them by the relay"
        remedy = "raise the server's max_connections, lower the relay's, or run fewer processes"
        yield warning("SESSIONS_FULL", place, text, remedy)


def leader(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """A scheduler leads the context."""
    if details.leader is None and details.state.tables.current is not None:
        yield warning(
            "NO_SCHEDULER", place, "no scheduler leads: nothing is published", "run: python -m scheduler"
        )


def pauses(place: str, details: DatabaseDetails) -> Iterator[Finding]:
    """No cron job is paused."""
    for name in details.paused:
        yield warning("JOB_PAUSED", place, f"the cron job {name} is paused", f"relay schedule resume {name}")


CLOSE_CHECKS: Final = (
    rights,
    others_rights,
    vacuum,
    snapshots,
    idle_sessions,
    blocked,
    pooler,
    sessions,
    leader,
    pauses,
)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
