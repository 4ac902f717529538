"""Least privilege in a context's database: what the fleet and what an application may do to which table.

The owner of the tables only runs migrations. The fleet (scheduler, workers, `relay`) reads and writes rows but
changes no table. An application records events and tasks in its own transactions and cannot read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from relay.adapters.postgres.failures import reaching
from relay.adapters.postgres.pool import dial
from relay.domain.disclosure import first_line
from relay.domain.errors import ConfigurationError

#: What a producer may name: the columns of the specification and the options, but no order and no place in a
#: stream. In those of the engine the tables take only their defaults (``schema/producer_columns.sql``).
_EVENT: Final = (
    "id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,"
    " causation_id, published_at, publish_attempts, publish_error, partition_key, topic, headers, available_at,"
    " originals, stream, expires_at"
)
_TASK: Final = (
    "id, type, payload, queue, priority, available_at, correlation_id, causation_id, metadata, concurrency_key,"
    " originals, expires_at"
)
#: One grant runs at a time, because two could deadlock. The number is next to the lock of migrations.
_LOCK: Final = "SELECT pg_advisory_xact_lock(1785882986, 1)"


@dataclass(frozen=True, slots=True)
class Rights:
    """What each role may do with one relation, in the words of GRANT. Empty: nothing."""

    relay: str = ""
    application: str = ""


#: Every table. A handler in an application's own process records handled messages in processed_events.
TABLES: Final[Mapping[str, Rights]] = {
    "outbox_events": Rights("SELECT, INSERT, UPDATE, DELETE", f"INSERT ({_EVENT})"),
    "inbox_messages": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "inbox_watermarks": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "parked_keys": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "inbox_replays": Rights("SELECT, INSERT, UPDATE"),
    "handler_circuits": Rights("SELECT, INSERT, UPDATE"),
    "controls": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "relay_wakeup": Rights("SELECT, UPDATE"),
    "dead_letters": Rights("SELECT, INSERT, UPDATE"),
    "alerts": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "alert_conditions": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "corrections": Rights("SELECT, INSERT"),
    "audit_log": Rights("SELECT, INSERT"),
    "selections": Rights("SELECT, INSERT, DELETE"),
    "processed_events": Rights("SELECT, INSERT, DELETE", "SELECT, INSERT (handler, message_id)"),
    "task_outbox": Rights("SELECT, INSERT, UPDATE, DELETE", f"INSERT ({_TASK})"),
    "task_rates": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "scheduler_lease": Rights("SELECT, UPDATE"),
    "scheduled_jobs": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "scheduled_runs": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "subject_keys": Rights("SELECT, INSERT, UPDATE", "SELECT, INSERT (id, subject, master, wrapped)"),
    "erased_messages": Rights("SELECT, INSERT, UPDATE"),
    "archive_batches": Rights("SELECT, INSERT, UPDATE"),
    "archived_messages": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "archived_events": Rights("SELECT, INSERT, UPDATE"),
    "orphaned_events": Rights("SELECT, INSERT, UPDATE, DELETE"),
    "history": Rights("SELECT, INSERT, DELETE"),
    "history_tallies": Rights("SELECT, INSERT, DELETE"),
    "relay_alembic_version": Rights("SELECT"),
}
#: The sequences that our statements read. An identity column needs no right to use its sequence.
SEQUENCES: Final[Mapping[str, Rights]] = {
    "outbox_events_seq_seq": Rights("SELECT"),
    "relay_reopened": Rights("SELECT"),
}
_CALLED: Final = Rights("EXECUTE", "EXECUTE")
_CALLED_BY_RELAY: Final = Rights("EXECUTE")
#: No role may execute trigger functions: some run as the owner, and nobody may attach them to another table.
FUNCTIONS: Final[Mapping[str, Rights]] = {
    "relay_order_outbox_event": Rights(),
    "relay_number_outbox_events": Rights(),
    "relay_wake_publisher": Rights(),
    "relay_wake_tasks": Rights(),
    "relay_brake_producer": Rights(),
    "relay_count_reopened": Rights(),
    "relay_refuse_future_event": Rights(),
    "relay_raise_alert": Rights(),
    "relay_refuse_engine_columns": Rights(),
    "relay_lock_outbox": _CALLED,
    "relay_cancel_events": _CALLED,
    "relay_take_outbox_locks": _CALLED,
    "relay_limit_wait": _CALLED,
    "relay_keep_ahead": _CALLED,
    "relay_outbox_ahead": _CALLED_BY_RELAY,
    "relay_sequences_behind": _CALLED_BY_RELAY,
    "relay_mend_sequences": _CALLED_BY_RELAY,
    "relay_lane_of_hash": _CALLED,
    "relay_lane": _CALLED_BY_RELAY,
    "relay_publisher_locks": _CALLED_BY_RELAY,
    "relay_key_locks": _CALLED,
    "relay_lane_locks": _CALLED,
    "relay_concurrency_locks": _CALLED_BY_RELAY,
    "relay_archive_locks": _CALLED_BY_RELAY,
    "relay_alert_locks": _CALLED_BY_RELAY,
    "relay_holds_back": _CALLED_BY_RELAY,
    "relay_exhausted": _CALLED_BY_RELAY,
    "relay_is_held_back": _CALLED_BY_RELAY,
    "relay_is_held_up": _CALLED_BY_RELAY,
    "relay_is_free": _CALLED_BY_RELAY,
    "relay_holds_key": _CALLED_BY_RELAY,
    "relay_head": _CALLED_BY_RELAY,
    "relay_may_run": _CALLED_BY_RELAY,
    "relay_its_turn": _CALLED_BY_RELAY,
    "relay_another_runs": _CALLED_BY_RELAY,
    "relay_may_call": _CALLED_BY_RELAY,
    "relay_attempt": _CALLED_BY_RELAY,
    "relay_noted": _CALLED_BY_RELAY,
    "relay_attempts_in_short": _CALLED_BY_RELAY,
    "relay_inbox_key": _CALLED_BY_RELAY,
    "relay_unpacks": _CALLED_BY_RELAY,
    "relay_body_has": _CALLED_BY_RELAY,
    "relay_incident_state": _CALLED_BY_RELAY,
}
#: Only the fleet is given this.
OF_FLEET: Final = "relay_attempt"
_RIGHT: Final = re.compile(r"([A-Z]+)(?: \(([^)]*)\))?")
_KINDS: Final = (("TABLE", TABLES), ("SEQUENCE", SEQUENCES), ("FUNCTION", FUNCTIONS))

#: A view of MicroDAO. An application sees the state of its events and reads no payload.
VIEW: Final = Rights(
    "SELECT",
    "INSERT, SELECT (id, stream, topic, created_at, processed, processed_at, error, partition_key, traceparent)",
)
_EACH_VIEW: Final = """\
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT c.oid::regclass AS name, c.relnamespace::regnamespace::text AS schema
    FROM pg_class AS c
    WHERE c.relkind = 'v'
      AND EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND t.tgname = 'relay_refuse_change')
      AND EXISTS (SELECT FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid
                  WHERE r.ev_class = c.oid AND d.refobjid = 'outbox_events'::regclass)
  LOOP
    EXECUTE {} || found.{} || {};
  END LOOP;
END $$"""

_SCHEMA: Final = """\
DO $$ BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO {roles}', current_schema());
END $$"""


def statements(relay: Sequence[str], application: Sequence[str]) -> list[str]:
    """Return the SQL that gives these roles their rights and revokes all other rights on our tables. Repeatable.

    The owner of the tables runs it in one transaction after each upgrade.
    """
    roles = [sql.Identifier(role) for role in dict.fromkeys([*relay, *application])]
    everybody = sql.SQL(", ").join([sql.SQL("PUBLIC"), *roles])
    schema = sql.SQL(_SCHEMA).format(roles=sql.SQL(", ").join(roles))
    composed = [sql.SQL(_LOCK), schema, *_revoked(everybody), *_views(relay, application, everybody)]
    for kind, found in _KINDS:
        for name, rights in found.items():
            composed += _granted(kind, name, rights.relay, relay)
            composed += _granted(kind, name, rights.application, application)
    return [statement.as_string(None) for statement in composed]


def beyond(given: Iterable[tuple[str, str, str, str | None, bool]]) -> dict[str, list[str]]:
    """What roles may do besides what `statements` gives them: by role, such as ``UPDATE on outbox_events``.

    ``given``: what ``server/grants`` finds.
    """
    found: dict[str, dict[str, None]] = {}
    for role, table, privilege, column, of_fleet in given:
        rights = TABLES.get(table, Rights())
        usual = _parts(rights.relay if of_fleet else rights.application)
        if column not in usual.get(privilege, ()):
            where = table if column is None else f"{table} ({column})"
            found.setdefault(role, {})[f"{privilege} on {where}"] = None
    return {role: [*texts] for role, texts in found.items()}


def _parts(rights: str) -> dict[str, set[str | None]]:
    """The columns of each right; None among them stands for the whole table."""
    return {
        name: {None, *columns.split(", ")} - ({None} if columns else {""})
        for name, columns in _RIGHT.findall(rights)
    }


def grant(url: str, relay: Sequence[str], application: Sequence[str]) -> None:
    """Run `statements`. Raises DatabaseUnreachable, and ConfigurationError when the server refuses."""
    with reaching():
        connection = dial(url, connect_timeout=5, application_name="jetrelay-grants")
    with connection:
        _refuse_the_owner(connection, {*relay, *application})
        try:
            for statement in statements(relay, application):
                connection.execute(statement.encode())
        except psycopg.Error as error:
            raise ConfigurationError(
                first_line(error), hint="run it as the owner of the tables, after `relay db upgrade`"
            ) from error


def _refuse_the_owner(connection: psycopg.Connection, roles: set[str]) -> None:
    row = connection.execute("SELECT current_user::text").fetchone()
    if row and row[0] in roles:
        raise ConfigurationError(
            f"{row[0][:80]!r} is the role that runs this and owns the tables: it would lose what migrations need",
            hint="make one role for the owner, one for the fleet and one for applications",
        )


def _revoked(roles: sql.Composed) -> Iterator[sql.Composed]:
    for kind, names in _KINDS:
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        yield sql.SQL("REVOKE ALL ON {} {} FROM {}").format(sql.SQL(kind), listed, roles)


def _views(relay: Sequence[str], application: Sequence[str], everybody: sql.Composed) -> Iterator[sql.Composed]:
    """The same for views of MicroDAO over our table, wherever they are (`relay.adapters.postgres.microdao`)."""
    yield _each_view("REVOKE ALL ON ", "name", sql.SQL(" FROM {}").format(everybody))
    for rights, roles in ((VIEW.relay, relay), (VIEW.application, application)):
        for role in map(sql.Identifier, roles):
            yield _each_view("GRANT USAGE ON SCHEMA ", "schema", sql.SQL(" TO {}").format(role))
            yield _each_view(f"GRANT {rights} ON ", "name", sql.SQL(" TO {}").format(role))


def _each_view(before: str, column: str, after: sql.Composed) -> sql.Composed:
    parts = sql.Literal(before), sql.Identifier(column), sql.Literal(after.as_string(None))
    return sql.SQL(_EACH_VIEW).format(*parts)


def _granted(kind: str, name: str, rights: str, roles: Sequence[str]) -> Iterator[sql.Composed]:
    if rights and roles:
        yield sql.SQL("GRANT {} ON {} {} TO {}").format(
            sql.SQL(rights), sql.SQL(kind), sql.Identifier(name), sql.SQL(", ").join(map(sql.Identifier, roles))
        )
