"""Real rows behind every route of the HTTP API, and what to ask each route so that it answers about them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay import Outbox, jobs
from relay.adapters.dramatiq.broker import create_broker
from relay.adapters.dramatiq.gates import Gates
from relay.adapters.members import Members
from relay.domain.claim_tokens import mark_of, token_of
from relay.settings import Settings
from tests.integration.archiving import ANN, archived
from tests.integration.console_rows import fill, fill_more, number
from tests.integration.personal_support import VARIABLES, masters, order
from tests.integration.test_members import WORKER
from tests.integration.test_ops_queues import handling, kill
from tests.unit.ops_support import USERS

PERSON = "c-7"


@dataclass(frozen=True)
class Rows:
    """A configuration with rows, and the names of what exists. Use `real_rows`."""

    document: dict[str, Any]
    context: str
    jobs: list[str]
    letters: list[int]
    deed: int

    @property
    def settings(self) -> Settings:
        """The configuration that the document describes."""
        return Settings.model_validate(self.document)

    def names(self, path: str) -> dict[str, str]:
        """Values for the parameters of a path: each names something that exists."""
        ids = {
            "events": number("first"),
            "inbox": number("failing-message"),
            "dead-letters": self.letters[0],
            "tasks": number("task-failed"),
            "subscriptions": next(iter(self.settings.contexts[self.context].subscriptions)),
            "task-types": "send_invoice",
            "replays": 1,
            "audit": self.deed,
        }
        found = {"context": self.context, "queue": jobs.HANDLE_QUEUE, "name": "nightly_report"}
        if "/{id}" in path:
            found["id"] = str(ids[path.partition("/{id}")[0].split("/")[-1]])
        return {name: value for name, value in found.items() if f"{{{name}}}" in path}

    def requests(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """For each route, as (method, path): queries of a GET, bodies of a POST, in an order that finds rows."""
        context, some = "/api/v1/contexts/{context}", {"limit": 1}
        dry = {"all": True, "dry_run": True}
        lists = ("events", "inbox", "dead-letters", "tasks", "parked", "schedule", "audit")
        everywhere = {("GET", f"/api/v1/{it}"): [dict[str, Any]()] for it in lists}
        found: dict[tuple[str, str], list[dict[str, Any]]] = {
            ("GET", "/api/v1/contexts"): [{}],
            ("GET", "/api/v1/backlogs"): [{}],
            ("GET", "/api/v1/explain"): [{"id": str(number("first"))}],
            ("GET", "/api/v1/find"): [
                {"q": "type:order_*"},
                {"q": str(number("first"))[:13]},
            ],
            ("GET", "/api/v1/doctor"): [{}],
            ("GET", "/api/v1/alarms"): [{}, {"context": self.context}],
            ("GET", "/api/v1/fleet"): [{}],
            ("GET", "/api/v1/fleet/running"): [{}],
            ("GET", "/api/v1/streams"): [{}],
            ("GET", "/healthz"): [{}],
            ("GET", "/readyz"): [{}],
            ("GET", f"{context}/events"): [some, {"thorough": True}, {"event_type": "order_placed"}],
            ("GET", f"{context}/events/{{id}}"): [{}, {"payload": True}],
            ("GET", f"{context}/events/{{id}}/payload"): [{}],
            ("POST", f"{context}/events/retry"): [dry, {"ids": [str(number(it)) for it in ("dead", "first")]}],
            ("POST", f"{context}/events/replay"): [
                {"filter": {"event_type": "order_placed"}, "dry_run": True},
                {"ids": [str(number("first"))]},
            ],
            ("POST", f"{context}/events/discard"): [{"ids": [str(number("dead"))], "note": "a test"}],
            ("POST", f"{context}/events/reopen"): [dry, {"ids": [str(number("dead"))]}],
            ("GET", f"{context}/inbox"): [some, {"thorough": True}],
            ("GET", f"{context}/inbox/groups"): [{"status": "failing"}],
            ("GET", f"{context}/inbox/{{id}}"): [{}, {"payload": True}],
            ("GET", f"{context}/inbox/{{id}}/payload"): [{}],
            ("POST", f"{context}/inbox/retry"): [dry, {"ids": [str(number("failing-message"))]}],
            ("POST", f"{context}/inbox/hold"): [{"ids": [str(number("failing-message"))], "note": "a test"}],
            ("POST", f"{context}/inbox/release"): [dry, {"ids": [str(number("failing-message"))]}],
            ("POST", f"{context}/inbox/discard"): [{"ids": [str(number("failing-message"))], "note": "a test"}],
            ("POST", f"{context}/inbox/reopen"): [dry, {"ids": [str(number("failing-message"))]}],
            ("POST", f"{context}/replays"): [{"subscription": "billing", "handled": "skip"}],
            ("GET", f"{context}/replays"): [{}],
            ("POST", f"{context}/replays/{{id}}/stop"): [{}],
            ("GET", f"{context}/dead-letters"): [some, {"thorough": True, "class": "poison"}],
            ("GET", f"{context}/dead-letters/groups"): [{}],
            ("GET", f"{context}/dead-letters/{{id}}"): [{}, {"payload": True}],
            ("GET", f"{context}/dead-letters/{{id}}/payload"): [{}],
            ("POST", f"{context}/dead-letters/requeue"): [dry, {"ids": [self.letters[0], 2**40]}],
            ("POST", f"{context}/dead-letters/snooze"): [
                {**dry, "for": "1h"},
                {"ids": [self.letters[3]], "for": "1h"},
            ],
            ("POST", f"{context}/dead-letters/wake"): [dry, {"ids": [self.letters[3]]}],
            ("POST", f"{context}/dead-letters/discard"): [{"ids": [self.letters[1]], "note": "a test"}],
            ("POST", f"{context}/dead-letters/resolve"): [{"ids": [self.letters[2]], "note": "a test"}],
            ("POST", f"{context}/dead-letters/reopen"): [dry, {"ids": [self.letters[1]]}],
            ("GET", f"{context}/tasks"): [some, {"thorough": True}],
            ("GET", f"{context}/tasks/{{id}}"): [{}, {"payload": True}],
            ("GET", f"{context}/tasks/{{id}}/payload"): [{}],
            ("POST", f"{context}/tasks/retry"): [dry, {"ids": [str(number("task-failed"))]}],
            ("POST", f"{context}/tasks/cancel"): [dry, {"ids": [str(number("task-0"))]}],
            ("POST", f"{context}/tasks/reopen"): [dry, {"ids": [str(number("task-0"))]}],
            ("GET", f"{context}/parked"): [{}],
            ("POST", f"{context}/parked/release"): [dry, {"keys": ["order:7", "none"]}],
            ("GET", f"{context}/schedule"): [{}],
            ("GET", f"{context}/schedule/{{name}}/runs"): [some, {}],
            ("POST", f"{context}/schedule/{{name}}/run"): [{"note": "a test"}],
            ("POST", f"{context}/schedule/{{name}}/pause"): [{}],
            ("POST", f"{context}/schedule/{{name}}/resume"): [{}],
            ("GET", f"{context}/task-types/{{id}}"): [{}, {"span": "6h"}],
            ("POST", f"{context}/controls/pause"): [
                {"what": "publishing", "for": "1h"},
                {"what": "event_type", "name": "x"},
            ],
            ("POST", f"{context}/controls/resume"): [{"what": "publishing"}],
            ("POST", f"{context}/controls/limit"): [{"what": "task_type", "name": "mail", "rate": "10/1s"}],
            ("GET", f"{context}/controls"): [{}],
            ("POST", f"{context}/controls/restore"): [{"what": "task_type", "name": "mail"}],
            ("GET", f"{context}/subscriptions"): [{}],
            ("GET", f"{context}/subscriptions/{{id}}"): [{}],
            ("GET", f"{context}/audit"): [some, {"action": "dlq.requeue"}],
            ("GET", f"{context}/history"): [{}, {"span": "48h"}, {"of": "outbox"}],
            ("GET", f"{context}/audit/{{id}}"): [{}],
            ("POST", f"{context}/audit/{{id}}/undo"): [{"note": "a test"}],
            ("GET", f"{context}/archive"): [{}],
            ("POST", f"{context}/archive/verify"): [{}],
            ("POST", f"{context}/archive/restore"): [dry, {"all": True}],
            ("POST", f"{context}/archive/replay"): [dry, {"all": True}],
            ("GET", f"{context}/retention"): [{}],
            ("POST", f"{context}/encrypt"): [
                {"event_type": "order_placed", "payload": {"customer_id": PERSON, "email": "ann@example.org"}}
            ],
            ("GET", "/api/v1/export"): [{"subject": PERSON}],
            ("GET", "/api/v1/forget"): [{"subject": PERSON}],
            ("POST", "/api/v1/forget"): [{"subject": PERSON, "note": "a test"}],
            ("GET", "/api/v1/queues"): [{}],
            ("GET", "/api/v1/queues/{queue}/jobs"): [some, {"args": True}],
            ("POST", "/api/v1/queues/{queue}/requeue"): [{"ids": [self.jobs[0], "none"]}],
            ("POST", "/api/v1/queues/{queue}/delete"): [{"all": True}],
        }
        return everywhere | found


def _about_a_person(url: str, context: str) -> None:
    """An event with personal values."""
    with pytest.MonkeyPatch.context() as patch, psycopg.connect(url) as connection:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        Outbox(context, undeclared=True).add(connection, order(PERSON))


def _run_some(url: str) -> None:
    """What the worker of the fleet has in hand: a message, a task and a run of a cron job; one has ended."""
    with psycopg.connect(url) as connection:
        token = token_of(1_700_000_000_000, mark_of(WORKER.host, WORKER.pid), 1)
        for table, key, row in (
            ("inbox_messages", "message_id", "waiting-message"),
            ("task_outbox", "id", "task-1"),
        ):
            claim = (
                f"UPDATE {table} SET claim_token = %s, claimed_until = now() + interval '1 hour' WHERE {key} = %s"
            )
            connection.execute(claim.encode(), [token, number(row)])
        run = """
            INSERT INTO scheduled_runs (job, scheduled_for, correlation_id, state, attempts, who, started_at,
                finished_at, claim_token, claimed_until)
            VALUES ('nightly_report', now() - %s * interval '1 day', gen_random_uuid(), %s, 1, %s, now(),
                CASE WHEN %s THEN now() END, %s, now() + interval '1 hour')
        """
        who = f"{WORKER.host}:{WORKER.pid}"
        connection.execute(run, [1, "finished", who, True, None])
        connection.execute(run, [0, "started", who, False, token])


@asynccontextmanager
async def real_rows(database: str, nats: str, redis: str, namespace: str, folder: Path) -> AsyncIterator[Rows]:
    """One context with rows of every kind in every state, an archive with files, and dead jobs in Redis."""
    async with archived(database, nats, folder / "cold") as archive:
        await archive.events(2)
        fill(database, database)
        fill_more(database)
        _run_some(database)
        context = archive.relay.context
        _about_a_person(database, context)
        with psycopg.connect(database) as connection:
            connection.execute("DELETE FROM archive_batches")  # it has no file
        await archive.command(rows=1).run(ANN)
        with psycopg.connect(database) as connection:
            rows = connection.execute("SELECT id FROM dead_letters ORDER BY id").fetchall()
            snoozed = "UPDATE dead_letters SET snoozed_until = now() + interval '1 hour' WHERE id = %s"
            connection.execute(snoozed, rows[4])
            deed = connection.execute(
                "INSERT INTO audit_log (actor, action, ids) VALUES ('ann', 'dlq.snooze', ARRAY[%s::text])"
                " RETURNING id",
                rows[4],
            ).fetchone()
            assert deed is not None
        broker = create_broker(redis, namespace=namespace, middleware=[])
        dead = kill(broker, *(handling(context, "billing") for _ in range(3)))
        gates = Gates(redis, namespace)
        await Members(gates.client, namespace).beat(WORKER)
        await gates.aclose()
        billing = {"stream": archive.relay.stream, "filter_subject": ">", "handler": "http://127.0.0.1:9/handle"}
        settings = {
            "nats_url": nats,
            "redis_url": redis,
            "redis_namespace": namespace,
            "contexts": {
                context: {
                    "database_url": database,
                    "archive": {"after": "90d", "directory": str(archive.root)},
                    "subscriptions": {"billing": billing},
                    "personal": {"order_placed": {"subject": "customer_id", "fields": ["email"]}},
                }
            },
            "personal": masters(),
            "ops": {"users": {"all": {**USERS["operator"], "payloads": True}}},
        }
        yield Rows(settings, context, dead, [id for (id,) in rows], deed[0])
