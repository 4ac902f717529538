"""Alerts on real servers: every final failure, by webhook and as fact, in one form; kept until it is taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from nats.js.errors import NotFoundError

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import connect_once
from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.sql import statement
from relay.adapters.webhook import Webhook
from relay.commands.alerts import SendAlerts
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.alerts import AlertClass, Condition
from relay.domain.errors import AlertRefused
from relay.domain.facts import AlertFailed, AlertRaised, Fact
from relay.domain.findings import Diagnosis, Examined, Finding, error, warning
from relay.domain.ordering import KEY
from relay.settings import Settings
from scheduler.alerts import ConditionTick
from tests.clock import Clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

CONTEXT = "sea"
EVENT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " VALUES (%(id)s, 'case', '7', 'opened', '{\"iban\": \"DE02\"}')"
)
TASK = (
    "INSERT INTO task_outbox (id, type, payload, queue, status, claim_token)"
    " VALUES (%(id)s, 'book', '{\"iban\": \"DE02\"}', 'mail', 'delivered', %(token)s)"
)
RUN = (
    "INSERT INTO scheduled_runs (job, scheduled_for, state, correlation_id, claim_token)"
    " VALUES ('close', now(), 'started', %(id)s, %(token)s) RETURNING scheduled_for"
)
MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject, subscription, order_key, order_seq, dead_letter_reason)"
    " VALUES (%(id)s, 'a.b', 'inward', 'k', 1, 'HTTP 422: no')"
)


@dataclass
class Channel:
    """A channel that takes alerts, or refuses them."""

    taken: list[dict[str, Any]] = field(default_factory=list)
    refuses: bool = False

    async def send(self, body: bytes) -> None:
        if self.refuses:
            raise AlertRefused("no")
        self.taken.append(json.loads(body))


@dataclass
class Office:
    """A database in which things fail, and who is told."""

    pool: Pool
    channel: Channel = field(default_factory=Channel)
    facts: list[Fact] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def sender(self, channel: Any = None, **options: Any) -> SendAlerts:
        options = {"runbook": "runbook.md", "clock": self.clock, "per_minute": 60, **options}
        records = PostgresAlerts(self.pool.connection)
        return SendAlerts(
            context=CONTEXT, alerts=records, channel=channel or self.channel, facts=self.facts.append, **options
        )

    async def run(self, sql: str, **parameters: Any) -> list[Any]:
        async with self.pool.connection() as conn:
            cursor = await conn.execute(sql, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def do(self, name: str, **parameters: Any) -> None:
        async with self.pool.connection() as conn, conn.transaction():
            await conn.execute(statement(name), parameters)

    async def dead_letters(
        self,
        count: int = 1,
        *,
        message_id: UUID | None = None,
        subscription: str = "inward",
        reason: str = "HTTP 422: no",
        headers: dict[str, str] | None = None,
        kind: str = "poison",
    ) -> None:
        """Incidents, as they are recorded. ``subscription`` may have the number of the incident, as %s."""
        await self.run(
            "INSERT INTO dead_letters"
            " (message_id, subscription, subject, event_type, class, reason, headers, original)"
            " SELECT coalesce(%(id)s, gen_random_uuid()), format(%(subscription)s, n), 'a.b', 'opened', %(kind)s,"
            " %(reason)s, %(headers)s::jsonb, %(original)s FROM generate_series(1, %(count)s) AS n",
            kind=kind,
            id=message_id,
            subscription=subscription,
            reason=reason,
            headers=json.dumps(headers or {}),
            original=b'{"iban": "DE02"}',
            count=count,
        )

    def raised(self) -> list[AlertRaised]:
        return [fact for fact in self.facts if isinstance(fact, AlertRaised)]


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[Office]:
    async with Pool(database_url, max_size=4, application_name="tests") as pool:
        yield Office(pool)


# --- every final failure ---

NOBODY: Any = {"worker": "{}"}


async def dead_letter(office: Office, id: UUID) -> None:
    await office.dead_letters(message_id=id)


async def dead_event(office: Office, id: UUID) -> None:
    await office.run(EVENT, id=id)
    failure = {
        "ids": [id],
        "errors": ["unrecoverable: over the server's limit"],
        "delays": [None],
        "counted": [1],
    } | NOBODY
    await office.do("outbox/record_failures", **failure)


async def failed_task(office: Office, id: UUID) -> None:
    await office.run(TASK, id=id, token=id)
    await office.do("tasks/fail", id=id, token=id, error="LookupError at app.book:7", note="{}")


async def failed_run(office: Office, id: UUID) -> None:
    [[at]] = await office.run(RUN, id=id, token=id)
    how = {"state": "failed", "error": "HTTP 500", "delay": timedelta(), "uncounted": 0}
    await office.do("schedule/settle_run", job="close", scheduled_for=at, token=id, **how)


async def missed_run(office: Office, id: UUID) -> None:
    await office.run("UPDATE scheduler_lease SET holder = %(id)s, expires_at = now() + interval '1 minute'", id=id)
    run = {"job": "close", "scheduled_for": datetime(2026, 1, 1, tzinfo=UTC), "missed": True}
    await office.do("schedule/open_run", holder=id, correlation_id=id, **run)


async def parked_key(office: Office, id: UUID) -> None:
    await office.run(MESSAGE, id=id)
    await office.do("inbox/park_key", message_id=id)


FAILURES: dict[AlertClass, tuple[Callable[[Office, UUID], Awaitable[None]], tuple[str, str], str]] = {
    AlertClass.DEAD_LETTER: (dead_letter, ("subscription", "inward"), "status_422"),
    AlertClass.DEAD_EVENT: (dead_event, ("outbox", CONTEXT), "too_large"),
    AlertClass.FAILED_TASK: (failed_task, ("task", "book"), "raised_LookupError"),
    AlertClass.FAILED_RUN: (failed_run, ("job", "close"), "status_500"),
    AlertClass.MISSED_RUN: (missed_run, ("job", "close"), "missed"),
    AlertClass.PARKED_KEY: (parked_key, ("subscription", "inward"), "status_422"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_every_final_failure_is_told_by_webhook_and_as_fact_in_one_form(
    office: Office, kind: AlertClass
) -> None:
    fail, (subject_type, subject), code = FAILURES[kind]
    id = uuid4()
    await fail(office, id)
    assert await office.sender().run() == 1
    [alert], [fact] = office.channel.taken, office.raised()
    assert {name: alert[name] for name in ("type", "class", "state", "context", "count")} == {
        "type": "relay.alert", "class": kind.value, "state": "raised", "context": CONTEXT, "count": 1,
    }  # fmt: skip
    assert alert["subject"] == {"type": subject_type, "name": subject}
    assert (alert["reason_code"], alert["reasons"]) == (code, {code: 1})
    assert alert["runbook"].startswith("runbook.md#jetrelay")
    assert str(id) in json.dumps(alert["incidents"])
    assert ("kind" in json.dumps(alert), "DE02" in json.dumps(alert)) == (False, False)
    told = (fact.kind, fact.state, fact.context, fact.subject_type, fact.subject, fact.reason_code, fact.count)
    assert told == (kind.value, "raised", CONTEXT, subject_type, subject, code, 1)
    assert (fact.text, fact.since.isoformat(), fact.runbook) == (alert["text"], alert["since"], alert["runbook"])
    assert await office.sender().run() == 0


@pytest.mark.parametrize(
    ("headers", "trace_id"),
    [
        ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "a" * 32),
        ({"Traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "a" * 32),
        ({"traceparent": "no trace"}, None),
        ({}, None),
    ],
)
async def test_an_alert_of_a_dead_letter_tells_the_trace(
    office: Office, headers: dict[str, str], trace_id: str | None
) -> None:
    await office.dead_letters(headers=headers)
    await office.sender().run()
    [incident] = office.channel.taken[0]["incidents"]
    assert (incident["trace_id"], incident["class"]) == (trace_id, "poison")


async def test_a_failure_that_is_rolled_back_alerts_nobody(office: Office) -> None:
    async with office.pool.connection() as conn, conn.transaction(force_rollback=True):
        await conn.execute(TASK, {"id": (id := uuid4()), "token": id})
        await conn.execute(statement("tasks/fail"), {"id": id, "token": id, "error": "x", "note": "{}"})
    assert await office.sender().run() == 0


async def test_a_failed_attempt_that_is_repeated_alerts_nobody(office: Office) -> None:
    await office.run(EVENT, id=(id := uuid4()))
    retry = {"ids": [id], "errors": ["x"], "delays": [timedelta(seconds=1)], "counted": [1]} | NOBODY
    await office.do("outbox/record_failures", **retry)
    assert await office.sender().run() == 0


# --- many ---


async def test_a_storm_is_one_alert_that_counts(office: Office) -> None:
    await office.dead_letters(7_000)
    await office.dead_letters(3_000, reason="HTTP 503")
    assert await office.sender().run() == 10_000
    [alert] = office.channel.taken
    assert (alert["count"], alert["reason_code"]) == (10_000, "status_422")
    assert alert["reasons"] == {"status_422": 7_000, "status_503": 3_000}
    assert (len(alert["incidents"]), len(office.raised())) == (20, 1)


async def test_what_comes_faster_than_the_limit_is_told_together_and_nothing_is_left_out(office: Office) -> None:
    await office.dead_letters()
    assert await office.sender(per_minute=6).run() == 1
    await office.dead_letters(3)
    assert await office.sender(per_minute=6).run() == 0
    await office.run("UPDATE alerts SET sent_at = sent_at - interval '11 seconds' WHERE sent_at IS NOT NULL")
    assert await office.sender(per_minute=4).run() == 0
    assert await office.sender(per_minute=6).run() == 3
    assert [alert["count"] for alert in office.channel.taken] == [1, 3]


async def test_all_subjects_share_the_limit_of_a_minute(office: Office) -> None:
    for name in ("a", "b", "c"):
        await office.dead_letters(subscription=name)
    assert await office.sender(per_minute=2).run() == 2
    assert [alert["subject"]["name"] for alert in office.channel.taken] == ["a", "b"]
    await office.run("UPDATE alerts SET sent_at = sent_at - interval '1 minute' WHERE sent_at IS NOT NULL")
    assert await office.sender(per_minute=2).run() == 1


@pytest.mark.parametrize(("conditions", "failures"), [(30, 1), (1, 30), (30, 30)])
async def test_neither_failures_nor_conditions_wait_behind_many_of_the_others(
    office: Office, conditions: int, failures: int
) -> None:
    many = [
        Condition(code="stream_refuses", place="nats", subject_type="stream", subject=f"S{number}", reason="full")
        for number in range(conditions)
    ]
    await PostgresAlerts(office.pool.connection).observe(many, ["nats"], timedelta(hours=1))
    for number in range(failures):
        await office.dead_letters(subscription=f"s{number}")
    sender = office.sender(per_minute=1)
    for _ in range(2):
        assert await sender.run() == 1
        await office.run("UPDATE alerts SET sent_at = sent_at - interval '1 minute' WHERE sent_at IS NOT NULL")
    assert [alert["class"] for alert in office.channel.taken] == ["dead_letter", "condition"]


# --- a webhook that is away ---


async def test_an_alert_that_is_refused_waits_and_is_sent_when_the_webhook_is_back(office: Office) -> None:
    await failed_task(office, uuid4())
    office.channel.refuses, sender = True, office.sender()
    assert await sender.run() == 0
    [failed] = [fact for fact in office.facts if isinstance(fact, AlertFailed)]
    assert (failed.error, failed.waiting, len(office.raised())) == ("no", 1, 1)
    await failed_task(office, uuid4())
    office.channel.refuses = False
    assert await sender.run() == 0  # it rests for a moment
    office.clock.now += 60
    assert await sender.run() == 2
    # The facts do not wait for the webhook, and are not repeated with it.
    assert ([it["count"] for it in office.channel.taken], [it.count for it in office.raised()]) == ([2], [1, 1])


async def test_an_alert_that_the_webhook_will_never_take_delays_no_other(office: Office) -> None:
    class Picky(Channel):
        async def send(self, body: bytes) -> None:
            self.refuses = json.loads(body)["class"] == "dead_event"
            await super().send(body)

    picky = Picky()
    sender = office.sender(picky)
    await dead_event(office, uuid4())
    await failed_task(office, uuid4())
    assert await sender.run() == 0
    assert await sender.run() == 1
    assert [it["class"] for it in picky.taken] == ["failed_task"]


async def test_a_sender_that_dies_between_record_and_send_leaves_the_alert_to_the_next(office: Office) -> None:
    class Dies:
        async def send(self, body: bytes) -> None:
            office.channel.taken.append(json.loads(body))
            raise ConnectionResetError("the process is gone")

    await dead_event(office, uuid4())
    with pytest.raises(ConnectionResetError):
        await office.sender(Dies()).run()
    assert await office.sender().run() == 1
    first, second = office.channel.taken
    assert first == second  # so a receiver knows it by its webhook-id


async def test_of_two_senders_one_sends(office: Office) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Channel):
        async def send(self, body: bytes) -> None:
            begun.set()
            await go_on.wait()
            await super().send(body)

    await dead_event(office, uuid4())
    slow = Slow()
    first = asyncio.create_task(office.sender(slow).run())
    await begun.wait()
    assert await office.sender().run() == 0
    go_on.set()
    assert (await first, len(slow.taken), office.channel.taken) == (1, 1, [])


async def test_an_operator_may_decide_while_an_alert_is_on_its_way(office: Office) -> None:
    class Meanwhile(Channel):
        async def send(self, body: bytes) -> None:
            async with asyncio.timeout(10):
                await office.run("UPDATE dead_letters SET status = 'discarded'")
            await super().send(body)

    await office.dead_letters()
    assert await office.sender(Meanwhile()).run() == 1


async def test_a_real_webhook_that_answers_500_and_then_204(office: Office) -> None:
    answers, bodies = [b"500 No", b"204 No Content"], []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        bodies.append((head.lower(), await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 " + answers.pop(0) + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        await failed_run(office, uuid4())
        sender = office.sender(Webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"))
        assert await sender.run() == 0
        office.clock.now += 60
        assert await sender.run() == 1
    (_, first), (_, second) = bodies
    assert first == second
    assert json.loads(first)["class"] == "failed_run"


# --- what nobody needs to hear, and what nobody asked for ---


async def test_nobody_is_told_of_what_an_operator_has_closed_meanwhile(office: Office) -> None:
    await office.dead_letters(2)
    office.channel.refuses, sender = True, office.sender()
    await sender.run()
    await office.run("UPDATE dead_letters SET status = 'discarded' WHERE id = (SELECT min(id) FROM dead_letters)")
    office.channel.refuses = False
    office.clock.now += 60
    assert await sender.run() == 1


async def test_unconfirmed_letters_share_one_alert_whatever_they_claim(office: Office) -> None:
    await office.dead_letters(1_000, subscription="forged %s", kind="unconfirmed")
    await office.dead_letters(500, kind="unconfirmed")
    await office.dead_letters()
    for _ in range(3):
        await office.sender().run()
    told = {it["subject"]["name"]: it["count"] for it in office.channel.taken}
    assert told == {"unknown": 1_500, "inward": 1}


async def test_a_snoozed_incident_alerts_again_after_its_time(office: Office) -> None:
    await office.dead_letters()
    await office.sender().run()
    await office.run("UPDATE dead_letters SET snoozed_until = now() + interval '1 hour', alerted_at = NULL")
    assert await office.sender().run() == 0
    await office.run("UPDATE dead_letters SET snoozed_until = now() - interval '1 second'")
    await office.run("UPDATE alerts SET sent_at = sent_at - interval '1 minute'")
    assert await office.sender().run() == 1


async def test_without_a_webhook_facts_are_stated_and_nothing_waits(office: Office) -> None:
    records = PostgresAlerts(office.pool.connection)
    sender = SendAlerts(context=CONTEXT, alerts=records, channel=None, facts=office.facts.append)
    await dead_event(office, uuid4())
    await sender.run()
    assert [fact.kind for fact in office.raised()] == ["dead_event"]
    assert not await records.waiting()
    assert await office.sender().run() == 0


async def test_the_webhook_gets_only_what_it_asks_for(office: Office) -> None:
    await office.dead_letters(subscription="inward")
    await office.dead_letters(subscription="other")
    await failed_task(office, uuid4())
    sender = office.sender(classes=["dead_letter"], subscriptions=["inward"])
    assert await sender.run() == 1
    assert [it["subject"]["name"] for it in office.channel.taken] == ["inward"]
    assert len(office.raised()) == 3


async def test_a_webhook_for_a_subscription_gets_the_errors_about_it(office: Office) -> None:
    records = PostgresAlerts(office.pool.connection)
    about = [
        replace(FULL, code="handler_away", subject_type="subscription", subject=f"{CONTEXT}.{name}")
        for name in ("inward", "other")
    ]
    await records.observe([FULL, *about], ["nats"], timedelta(hours=1))
    assert await office.sender(subscriptions=["inward"]).run() == 1
    assert [it["subject"]["name"] for it in office.channel.taken] == [f"{CONTEXT}.inward"]


# --- conditions ---

FULL = Condition(
    code="stream_full", place="nats", subject_type="stream", subject="SEA_EVENTS", reason="100 % full"
)


async def test_a_condition_alerts_when_it_begins_while_it_lasts_and_when_it_ends(office: Office) -> None:
    records, hour = PostgresAlerts(office.pool.connection), timedelta(hours=1)

    async def look(*found: Condition, looked: tuple[str, ...] = ("nats",)) -> list[str]:
        await records.observe(found, looked, hour)
        before = len(office.raised())
        await office.sender().run()
        await office.run("UPDATE alerts SET sent_at = sent_at - interval '1 minute'")
        return [f"{it.state} {it.reason_code} {it.subject}" for it in office.raised()[before:]]

    assert await look(FULL) == ["raised stream_full SEA_EVENTS"]
    assert await look(FULL) == []
    await office.run("UPDATE alert_conditions SET alerted_at = alerted_at - interval '61 minutes'")
    assert await look(FULL) == ["lasting stream_full SEA_EVENTS"]
    assert await look(looked=()) == []  # the server did not answer: nobody knows
    assert await look() == ["resolved stream_full SEA_EVENTS"]
    assert await look() == []
    assert await look(FULL) == ["raised stream_full SEA_EVENTS"]
    states = [it["state"] for it in office.channel.taken]
    assert states == ["raised", "lasting", "resolved", "raised"]
    assert {it["class"] for it in office.channel.taken} == {"condition"}


def diagnosis(*findings: Finding, answers: bool = True) -> Diagnosis:
    detail = "JetStream with 3 streams" if answers else ""
    return Diagnosis(examined=[Examined(server="nats", milliseconds=1, detail=detail, findings=findings)])


async def test_an_outbox_of_which_many_lanes_stand_still_is_one_condition(office: Office) -> None:
    settings = Settings.model_validate({"contexts": {CONTEXT: {"database_url": "postgresql://x/sea"}}})
    tick = ConditionTick(CONTEXT, settings, PostgresAlerts(office.pool.connection), office.facts.append)
    lanes = [f"lane {lane}" for lane in range(30)] + ["without a key"]
    found = [error("OUTBOX_STALLED", f"events of {CONTEXT}.{lane}", "stand still") for lane in lanes]
    for _ in range(2):
        await tick.observe(diagnosis(*found, error("INBOX_STALLED", f"subscription {CONTEXT}.in", "stand still")))
    await office.sender().run()
    assert sorted(it.subject for it in office.raised()) == [CONTEXT, f"{CONTEXT}.in"]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("nats", ("server", "nats")),
        ("postgresql sea", ("postgresql", "sea")),
        ("stream SEA_EVENTS", ("stream", "SEA_EVENTS")),
        ("consumer SEA_EVENTS/sea__in", ("consumer", "SEA_EVENTS/sea__in")),
        ("subscription sea.in", ("subscription", "sea.in")),
        ("events of sea", ("events", "sea")),
        ("events of sea.without a key", ("events", "sea")),
        ("tasks of sea.mail", ("tasks", "sea.mail")),
        ("runs of sea.of the night", ("runs", "sea.of the night")),
        ("postgresql at host:5432", ("postgresql", "host:5432")),
    ],
)
async def test_a_condition_says_what_it_is_about(office: Office, subject: str, expected: tuple[str, str]) -> None:
    settings = Settings.model_validate({"contexts": {CONTEXT: {"database_url": "postgresql://x/sea"}}})
    tick = ConditionTick(CONTEXT, settings, PostgresAlerts(office.pool.connection), office.facts.append)
    await tick.observe(diagnosis(error("SOMETHING", subject, "is wrong")))
    await office.sender().run()
    assert [(it.subject_type, it.subject) for it in office.raised()] == [expected]


async def test_an_error_of_health_is_a_condition_and_one_of_a_moment_is_none(office: Office) -> None:
    settings = Settings.model_validate({"contexts": {CONTEXT: {"database_url": "postgresql://x/sea"}}})
    records = PostgresAlerts(office.pool.connection)
    tick = ConditionTick(CONTEXT, settings, records, office.facts.append)
    sealed = error("STREAM_SEALED", "stream SEA_EVENTS", "is sealed", "unseal it")
    away = error("BROKER_UNREACHABLE", "nats", "does not answer")

    async def look(found: Diagnosis) -> list[str]:
        await tick.observe(found)
        before = len(office.raised())
        await office.sender().run()
        return [f"{it.state} {it.reason_code} {it.subject_type} {it.subject}" for it in office.raised()[before:]]

    assert await look(diagnosis(sealed, warning("SYNC_LATE", "nats", "late"))) == [
        "raised stream_sealed stream SEA_EVENTS"
    ]
    assert await look(diagnosis(away, answers=False)) == []  # it may be a restart
    assert await look(diagnosis(away, answers=False)) == ["raised broker_unreachable server nats"]
    # Of the stream nobody knew anything meanwhile, so it is not resolved, and is not raised again.
    assert await look(diagnosis(sealed)) == ["resolved broker_unreachable server nats"]
    assert await look(diagnosis()) == ["resolved stream_sealed stream SEA_EVENTS"]
    still = error("INBOX_STALLED", "subscription sea.inward", "nothing moves")
    assert await look(diagnosis(still)) == []  # it may be the start of the fleet
    assert await look(diagnosis(still)) == ["raised inbox_stalled subscription sea.inward"]
    opened = warning("HANDLER_AWAY", "subscription sea.inward", "does not answer")
    assert await look(diagnosis())
    assert await look(diagnosis(opened)) == ["raised handler_away subscription sea.inward"]


async def test_the_leader_looks_at_real_servers_and_tells(
    office: Office, database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> None:
    """A stream that is missing is an error of health; when it is there, this is resolved."""
    name = f"c{uuid4().hex[:8]}"
    values = {
        "nats_url": nats_server.url,
        "redis_url": valkey.url,
        "contexts": {name: {"database_url": database_url}},
    }
    settings = Settings.model_validate(values)
    tick = ConditionTick(name, settings, PostgresAlerts(office.pool.connection), office.facts.append)

    async def told(state: str) -> bool:
        await tick.tick()
        await office.sender().run()
        wanted = (state, "stream_missing", f"{name.upper()}_EVENTS")
        return wanted in [(it.state, it.reason_code, it.subject) for it in office.raised()]

    try:
        await eventually("the missing stream is told", lambda: told("raised"))
        async with connect_once(nats_server.url) as js:
            await topology.ensure(js, settings.streams(), settings.consumers())
        await eventually("its end is told", lambda: told("resolved"))
    finally:
        await tick.stop()
        async with connect_once(nats_server.url) as js:
            for stream in (f"{name.upper()}_EVENTS", f"{name.upper()}_DLQ"):
                with suppress(NotFoundError):
                    await js.delete_stream(stream)


async def test_a_context_is_told_of_its_own_errors_and_of_no_other_context(
    office: Office, database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    """The other one has no streams. Its events in a stream of ours are no orphans of ours."""
    own, other = (f"{letter}{uuid4().hex[:8]}" for letter in "ab")
    subjects = [f"{own}.event.>", f"{other}.event.>"]
    values = {
        "nats_url": nats_server.url,
        "redis_url": valkey.url,
        "contexts": {
            own: {"database_url": database_url, "stream": {"subjects": subjects}},
            other: {"database_url": database_url, "stream": {"subjects": [f"{other}.late.>"]}},
        },
    }
    settings = Settings.model_validate(values)
    ours = [it for it in settings.streams() if not it.name.startswith(other.upper())]
    headers = {"Nats-Msg-Id": str(uuid4()), KEY: "k"}

    async def told(context: str) -> set[tuple[str, str]]:
        """What one look finds. Its alerts are taken away."""
        tick = ConditionTick(context, settings, PostgresAlerts(office.pool.connection), office.facts.append)
        await tick.look()
        await office.sender().run()
        found = {(it.reason_code, it.subject) for it in office.raised()}
        office.facts.clear()
        await office.run("DELETE FROM alert_conditions")
        return found

    async with connect_once(nats_server.url) as js:
        await topology.ensure(js, ours, [])
        try:
            await js.publish(f"{other}.event.x.v1", b"{}", headers=headers)
            assert await told(own) == set()
            expected = {("stream_missing", f"{other.upper()}_{kind}") for kind in ("EVENTS", "DLQ")}
            assert await told(other) == expected
        finally:
            for kind in ("EVENTS", "DLQ"):
                with suppress(NotFoundError):
                    await js.delete_stream(f"{own.upper()}_{kind}")
