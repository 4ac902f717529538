"""Every page of the console, by its route, and rows whose every name is as long and odd as the tables take."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from fastapi.routing import iter_route_contexts

from relay.ops.api.app import create_app
from relay.settings import Settings
from tests.integration.console_rows import event, failing_message, letter, number, task
from tests.integration.ops_rows import Rows, real_rows

LONG_CONTEXT = "orders_of_the_wholesale_division_for_northern_and_eastern_europe"
TYPE = "OrderOfTheWholesaleDivisionWasPlacedByACustomerOfNorthernEurope_"
NAME = f"from_{'warehouse' * 6}_today"[:64]
KEY = f"customer:{'0123456789abcdef' * 11}:end"
ODD = (
    "\u202egnirts desrever\u202c שלום עולם مرحبا بالعالم 👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈"
    " Zürich ﷽ Z\u0338\u0361\u031da\u0337lgo "
)
PERSON = "customer-" * 28
#: As cron jobs of a place far away have it.
CRON = "*/15 0-23 1,2,3,4,5,6,7,8,9 * * (America/Argentina/ComodRivadavia)"
NOW = datetime.now(UTC).replace(second=0, microsecond=0)
TEXT = f"{ODD}{'unbreakable' * 20} and then words, many of them, one after the other, as people write " * 3


def lengthen(url: str) -> None:
    """Rows of every kind, in the states that pages show, with those names."""
    with psycopg.connect(url) as connection:
        dressed = {"type": TYPE, "about": KEY, "payload": json.dumps({KEY: ODD, "text": TEXT})}
        for state in ("waiting", "failing", "dead", "published"):
            event(
                connection, f"long-{state}", state, error=TEXT if state in ("failing", "dead") else None, **dressed
            )
        connection.execute("UPDATE outbox_events SET partition_key = %s WHERE event_type = %s", [KEY, TYPE])
        connection.execute(
            "UPDATE outbox_events SET headers = %s WHERE event_type = %s", [json.dumps({NAME: KEY}), TYPE]
        )
        connection.execute(
            "UPDATE outbox_events SET available_at = now() + interval '1 hour' WHERE id = %s",
            [event(connection, "long-delayed", **dressed)],
        )
        where = {"subscription": NAME, "type": TYPE}
        letter(connection, "long", **where, reason=TEXT)
        letter(connection, "long-key", **where, reason=f"exhausted: 20 attempts, the last one: {KEY}")
        failing_message(connection, "long-failing", **where)
        connection.execute(
            "UPDATE inbox_messages SET partition_key = %s, order_key = %s, last_error = %s"
            " WHERE subscription = %s",
            [KEY, KEY, TEXT, NAME],
        )
        connection.execute(
            "UPDATE dead_letters SET subject = %s, note = %s, closed_by = %s, headers = %s"
            " WHERE subscription = %s",
            [f"{LONG_CONTEXT}.event.{TYPE}.v1", TEXT, NAME, json.dumps({NAME: KEY}), NAME],
        )
        for state in ("pending", "failed", "cancelled"):
            task(connection, f"long-{state}", state, type=TYPE, queue=NAME, error=TEXT)
        newer = failing_message(connection, "long-newer", **where)
        connection.execute(
            "UPDATE inbox_messages SET last_error = 'UNKNOWN_VERSION: no handler', event_version = 2147483647"
            " WHERE message_id = %s",
            [newer],
        )
        _others(connection)


def _others(connection: psycopg.Connection) -> None:
    run = "INSERT INTO {} VALUES ({})"
    for table, values in (
        ("parked_keys (subscription, order_key, message_id, reason)", [NAME, KEY, number("long"), TEXT]),
        ("scheduled_jobs (name, schedule, error, last_run_at, paused_at)", [TYPE, CRON, TEXT, NOW, NOW]),
        (
            "scheduled_runs (job, state, who, error, scheduled_for, correlation_id, attempts, started_at)",
            ["nightly_report", "failed", f"{NAME}:123456", TEXT, NOW, number("run"), 3, NOW],
        ),
        ("controls (what, act, name, by, reason)", ["subscription", "pause", NAME, NAME, TEXT]),
        (
            "inbox_replays (subscription, actor, key, event_type, note, error, until, again, rate)",
            [NAME, NAME, KEY, TYPE, TEXT, TEXT, NOW, False, 100],
        ),
        (
            "audit_log (actor, action, ids, note)",
            [NAME, "parked.release", [KEY, ODD, *map(str, range(10**15, 10**15 + 90))], TEXT],
        ),
        (
            "subject_keys (id, subject, master, wrapped, forgotten_at)",
            [number("long"), PERSON, "2026", None, NOW],
        ),
        ("subject_keys (id, subject, master, wrapped)", [number("first"), PERSON, "2026", bytes(40)]),
        ("audit_log (actor, action, ids, note)", [NAME, "personal.forget", [str(number("long"))], TEXT]),
        ("history (step, kind, name, at, done, waiting)", ["minute", "subscription", NAME, NOW, 7, 10**12]),
        ("history (step, kind, name, at, done, waiting)", ["minute", "task", TYPE, NOW, 7, 10**12]),
    ):
        connection.execute(run.format(table, ", ".join(["%s"] * len(values))).encode(), values)


@asynccontextmanager
async def long_named(
    database: str, nats: str, redis: str, namespace: str, folder: Path
) -> AsyncIterator[tuple[Settings, Rows]]:
    """A configuration with two contexts, one of them with rows of every kind and all those names."""
    async with real_rows(database, nats, redis, namespace, folder) as rows:
        lengthen(database)
        (folder / "cold" / rows.context).rename(folder / "cold" / LONG_CONTEXT)
        [context] = rows.document["contexts"].values()
        billing = context["subscriptions"]["billing"]
        subscriptions = {"billing": billing, NAME: {**billing, "durable": "long"}}
        contexts = {LONG_CONTEXT: {**context, "subscriptions": subscriptions}, "sea": {"database_url": database}}
        document = {**rows.document, "contexts": contexts, "ops": {}}
        yield Settings.model_validate(document), rows


def pages(rows: Rows) -> dict[str, list[str]]:
    """For each route of the console, the addresses that are looked at; none of a part or a download."""
    here = f"/contexts/{LONG_CONTEXT}"
    shown = {
        "events": number("long-dead"),
        "inbox": number("long-failing"),
        "dead-letters": rows.letters[-1] + 1,
        "tasks": number("long-failed"),
    }
    found = {
        "/": ["/"],
        "/doctor": ["/doctor"],
        "/explain": [f"/explain?id={number('long')}", f"/explain?id={number('first')}", "/explain?id=nothing"],
        "/find": [f"/find?q=type:{TYPE}", "/find?q=kind:dead-letters+status:open", f"/find?q={KEY}"],
        "/all/parked": ["/all/parked"],
        "/all/schedule": ["/all/schedule"],
        "/all/audit": ["/all/audit"],
        "/streams": ["/streams"],
        "/fleet": ["/fleet"],
        "/queues": ["/queues"],
        "/queues/jobs": ["/queues/jobs?queue=relay-handle"],
        "/queues/{verb}": [f"/queues/requeue?queue=relay-handle&ids={rows.jobs[0]}"],
        "/persons": ["/persons", f"/persons?subject={PERSON}&held=1"],
        "/persons/export": [],
        "/persons/forget": [f"/persons/forget?subject={PERSON}"],
        "/contexts/{context}/retention": [f"{here}/retention"],
        "/contexts/{context}/parked": [f"{here}/parked"],
        "/contexts/{context}/parked/release": [f"{here}/parked/release?all=1"],
        "/contexts/{context}/schedule": [f"{here}/schedule"],
        "/contexts/{context}/schedule/runs": [f"{here}/schedule/runs?name=nightly_report"],
        "/contexts/{context}/schedule/{verb}": [f"{here}/schedule/run?name={TYPE}"],
        "/contexts/{context}/audit": [f"{here}/audit"],
        "/contexts/{context}/audit/{id}": [f"{here}/audit/{rows.deed}", f"{here}/audit/{rows.deed + 1}"],
        "/contexts/{context}/history": [f"{here}/history", f"{here}/history?of=subscription&name={NAME}&span=48h"],
        "/contexts/{context}/subscriptions/{name:path}": [f"{here}/subscriptions/{NAME}"],
        "/contexts/{context}/task-types/{name:path}": [f"{here}/task-types/{TYPE}"],
        "/contexts/{context}/replays": [f"{here}/replays"],
        "/contexts/{context}/replays/start": [f"{here}/replays/start?subscription={NAME}&handled=skip&key={KEY}"],
        "/contexts/{context}/replays/stop": [f"{here}/replays/stop?id=1"],
        "/contexts/{context}/controls": [f"{here}/controls"],
        "/contexts/{context}/controls/{verb}": [f"{here}/controls/pause?what=subscription&name={NAME}"],
        "/contexts/{context}/archive": [f"{here}/archive"],
        "/contexts/{context}/archive/verify": [f"{here}/archive/verify"],
        "/contexts/{context}/archive/{verb}": [f"{here}/archive/restore?subject={TYPE}"],
        "/contexts/{context}/archive/{verb}/done": [],
        "/contexts/{context}/{path}/{name}": [
            f"{here}/dead-letters/discard?all=1&subscription={NAME}",
            f"{here}/inbox/hold?all=1&subscription={NAME}",
        ],
    }
    for path, id in shown.items():
        found |= {
            f"/contexts/{{context}}/{path}": [f"{here}/{path}", f"{here}/{path}?limit=2"],
            f"/contexts/{{context}}/{path}/show": [f"{here}/{path}/show?id={id}&payload=true"],
            f"/contexts/{{context}}/{path}/payload": [],
            f"/contexts/{{context}}/{path}/groups": [],
        }
    return found


def routes(settings: Settings) -> set[str]:
    """The path of every route of the console that answers to GET."""
    app = create_app(settings)._app._app._app
    return {
        it.path
        for it in iter_route_contexts(app.routes)
        if it.methods and "GET" in it.methods and not it.path.startswith(("/api", "/healthz", "/readyz"))
    }
