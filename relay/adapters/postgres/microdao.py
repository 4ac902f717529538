"""The outbox of MicroDAO §3 as a view over a context's own, for producers that write SQL in any language.

Before it plans an INSERT into the view, PostgreSQL rewrites it into an INSERT into the table. So a prepared
statement is rewritten only once, and the triggers of the table act here too: order, numbers, the wake-up.
``INSTEAD OF`` triggers would run an INSERT of their own for each row. The price of the rule: PostgreSQL refuses
``ON CONFLICT``, ``COPY``, and a ``WITH`` that changes data before an ``INSERT … SELECT``. An INSERT takes 0.84
of the table's speed.

The rule reads NEW once, in a subquery: it puts the producer's expressions wherever it says NEW, and two places
would call ``gen_id()`` twice. The view of another context in the same schema is left alone: it would lose its
producers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from relay.adapters.postgres import migrations
from relay.adapters.postgres.failures import reaching
from relay.adapters.postgres.pool import dial
from relay.domain.errors import ConfigurationError

#: The view, as producers name it in its schema, and the trigger by which it is recognised.
VIEW: Final = "outbox_events"
REFUSAL: Final = "relay_refuse_change"

#: A query of the view by id uses this index.
INDEX: Final = """
CREATE INDEX IF NOT EXISTS idx_outbox_shown_id ON outbox_events ((coalesce(originals ->> 'id', id::text)))
"""

_COLUMNS: Final = """
       coalesce(e.originals ->> 'id', e.id::text) AS id,
       coalesce(e.stream, e.published_stream) AS stream,
       e.topic,
       e.payload,
       e.occurred_at AS created_at,
       e.published_at IS NOT NULL AS processed,
       e.published_at AS processed_at,
       e.publish_error AS error,
       CASE WHEN starts_with(e.partition_key, e.stream || ':') THEN substr(e.partition_key, length(e.stream) + 2)
            ELSE nullif(e.partition_key, '')
       END AS partition_key,
       coalesce(e.headers ->> 'traceparent', e.headers ->> 'Traceparent') AS traceparent
"""

# The first SELECT below reads NEW once: in a statement of one row NEW.id stands for what the producer wrote, such
# as gen_id(), and each mention would call it again. A text that is no UUID is kept in originals.
# The cast is outside of the CASE: the planner would try a cast of a constant within it.
#
# The table's own trigger makes the partition key of aggregate_type and aggregate_id, so a key orders within its
# stream. Without a stream, topic, payload or id these columns are NULL, and the table refuses the row.
_LAY: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {table} AS e;

CREATE OR REPLACE RULE relay_insert AS ON INSERT TO {view} DO INSTEAD
INSERT INTO {table} AS e (
    id, originals, aggregate_type, aggregate_id, event_type, payload, occurred_at,
    published_at, publish_error, dead_at, topic, stream, headers)
SELECT CAST(CASE WHEN {uuid} THEN n.id WHEN n.id IS NOT NULL THEN {made}::text END AS uuid),
       CASE WHEN NOT ({uuid}) THEN jsonb_build_object('id', n.id) END,
       n.stream, coalesce(n.partition_key, n.stream), right(translate(n.topic, '.', '_'), 64), n.payload,
       coalesce(n.created_at, now()),
       CASE WHEN n.processed THEN coalesce(n.processed_at, n.created_at, now()) END,
       n.error, CASE WHEN n.processed IS NOT TRUE AND starts_with(n.error, 'unrecoverable') THEN now() END,
       n.topic, n.stream,
       CASE WHEN n.traceparent ~ {trace} THEN jsonb_build_object('traceparent', n.traceparent) ELSE '{{}}' END
FROM LATERAL (
    SELECT NEW.id AS id, NEW.stream AS stream, NEW.topic AS topic, NEW.payload AS payload,
           NEW.created_at AS created_at, NEW.processed AS processed, NEW.processed_at AS processed_at,
           NEW.error AS error, NEW.partition_key AS partition_key, NEW.traceparent AS traceparent) AS n
RETURNING {columns};

CREATE OR REPLACE FUNCTION {refuse}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE object_not_in_prerequisite_state USING
    MESSAGE = TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME || ' takes INSERT and SELECT only, no ' || TG_OP,
    HINT = 'the relay marks its events as processed and archives them; `relay outbox retry` retries failed ones',
    SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END $$;

CREATE OR REPLACE TRIGGER relay_refuse_change INSTEAD OF UPDATE OR DELETE ON {view}
  FOR EACH ROW EXECUTE FUNCTION {refuse}();
CREATE OR REPLACE TRIGGER relay_refuse_statement BEFORE UPDATE OR DELETE ON {view}
  FOR EACH STATEMENT EXECUTE FUNCTION {refuse}();
"""
# The rule of `Identity`: hyphens where they belong, else digits only. A regular expression takes 3 µs more.
_UUID: Final = "n.id LIKE '________-____-____-____-____________' AND pg_input_is_valid(n.id, 'uuid')"
_UUID_15: Final = "n.id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$'"

# The rule of `Trace`. A trace that is not valid is left out: it must never break the event that it came with.
_TRACE: Final = "^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"

#: The schema of another context whose events a view of this name shows.
_OTHER: Final = """
SELECT n.nspname
FROM pg_rewrite AS r
JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
JOIN pg_class AS t ON d.refclassid = 'pg_class'::regclass AND t.oid = d.refobjid
                   AND t.relname = %(view)s AND t.relkind <> 'v'
JOIN pg_namespace AS n ON n.oid = t.relnamespace
WHERE r.ev_class = to_regclass(format('%%I.%%I', %(schema)s::text, %(view)s::text)) AND n.nspname <> %(own)s
"""

#: The first version of PostgreSQL that has `pg_input_is_valid`.
_INPUT_IS_VALID: Final = 160_000
#: The first version that makes UUIDs in the order of time.
_UUIDV7: Final = 180_000
#: The oldest version for which the tables are made.
_OLDEST: Final = 150_000


def lay(url: str, schema: str, *, waiting: Callable[[str], None] = lambda _: None) -> None:
    """Make the view in ``schema``, or bring it up to date, beside producers that use it. Repeatable.

    The table must be up to date. Raises DatabaseUnreachable, UpgradeBlocked, and ConfigurationError if the role
    may not, or if the schema has something else of the view's name, or the view of another context.
    """
    with reaching(), dial(url, connect_timeout=5) as connection:
        found = connection.execute("SELECT current_schema()").fetchone()
        own = str(found[0]) if found else "public"
        _refuse_that_of_another(connection, own, schema)
        text = statements(own, schema, connection.info.server_version).as_string(connection)
    migrations.run(url, [INDEX, text], waiting=waiting)


def _refuse_that_of_another(connection: psycopg.Connection, own: str, schema: str) -> None:
    """Refuse to replace it: then events of another context would be sent as events of this one."""
    other = connection.execute(_OTHER, {"view": VIEW, "own": own, "schema": schema}).fetchone()
    if other is not None:
        raise ConfigurationError(
            f"{schema}.{VIEW} shows the events of the schema {other[0]}",
            field="microdao_schema",
            hint="give each context a microdao_schema of its own; if the other one is gone, drop the view",
        )


def script(own: str | None, schema: str) -> str:
    """All of it as plain SQL, to apply after that of the tables (`migrations.sql`)."""
    return f"\nBEGIN;\n{INDEX};\n{statements(own, schema, _OLDEST).as_string(None)}\nCOMMIT;\n"


def statements(own: str | None, schema: str, version: int) -> sql.Composed:
    """The SQL that makes the view in ``schema`` over the table in the schema ``own``. Repeatable.

    ``own`` None: the table is where the search_path finds it.
    ``version``: the oldest version that it must run on, as libpq writes it. If the server makes UUIDs in the order
    of time, rows whose events have no UUID get such ids, and so are near each other in the index.
    """
    made: LiteralString = "uuidv7()" if version >= _UUIDV7 else "gen_random_uuid()"
    return sql.SQL(_LAY).format(
        schema=sql.Identifier(schema),
        view=sql.Identifier(schema, VIEW),
        refuse=sql.Identifier(schema, REFUSAL),
        table=sql.Identifier(VIEW) if own is None else sql.Identifier(own, VIEW),
        columns=sql.SQL(_COLUMNS),
        uuid=sql.SQL(_UUID if version >= _INPUT_IS_VALID else _UUID_15),
        trace=sql.Literal(_TRACE),
        made=sql.SQL(made),
    )
