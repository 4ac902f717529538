"""What is stale is published and handled by nobody, is listed, and goes on only if an operator says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from nats.js.errors import NotFoundError
from pydantic import BaseModel

from relay import Event, Outbox, event
from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.row_operations import (
    EventFilter,
    PostgresOutboxOperations,
    PostgresTaskOperations,
    TaskFilter,
)
from relay.devstack import NatsServer
from relay.domain.errors import InvalidTimestamp
from relay.domain.expiry import NEVER
from relay.domain.facts import EventExpired, MessageExpired, TaskExpired
from relay.domain.operators import Operator, Outcome
from relay.domain.tasks import InvalidTask
from tasks.outbox import background_task
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.integration.publishing import KINDS, Relay, producing, query
from tests.integration.publishing import event as made
from tests.integration.reconciling import command, only
from tests.integration.tasking import Mail, Tasks, tasking
from tests.integration.test_cli_operating import Shell
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
BOB = Operator("bob", "too late")
HOUR = timedelta(hours=1)
AGO = timedelta(seconds=-1)
#: Far enough in the past, whatever the clock of the database.
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        yield relay


def outbox(relay: Relay) -> PostgresOutboxOperations:
    return PostgresOutboxOperations(relay.pool.connection)


def codes(outcome: Outcome) -> list[str]:
    return [error.code for _, error in outcome.refused]


async def listed(relay: Relay, *statuses: str) -> list[UUID]:
    page = await outbox(relay).find(EventFilter(statuses=[*statuses]), 100)
    return [row["id"] for row in page.items[::-1]]


def expiry(relay: Relay, id: UUID) -> Any:
    return query(relay.url, "SELECT expires_at FROM outbox_events WHERE id = %s", id)[0]["expires_at"]


async def test_a_stale_event_reaches_no_stream_and_later_ones_of_its_key_do(relay: Relay) -> None:
    stale, fresh, plain = relay.add(made("a", expires_at=LONG_AGO), made("a", expires_in=HOUR), made("a"))
    await relay.drained()
    first, second = await relay.messages()
    assert [it.headers["Nats-Msg-Id"] for it in (first, second)] == [str(fresh), str(plain)]
    assert datetime.fromisoformat(first.headers["Relay-Expires-At"]) == expiry(relay, fresh)
    assert "Relay-Expires-At" not in second.headers
    [found] = (await outbox(relay).find(EventFilter(statuses=["expired"]), 9)).items
    assert (found["id"], found["error_code"], found["expires_at"]) == (stale, "expired", LONG_AGO)
    shown = await outbox(relay).get(stale)
    assert shown is not None
    assert shown["status"] == "expired"
    for other in ("published", "discarded", "dead", "waiting", "failing"):
        assert stale not in await listed(relay, other)
    [fact] = [it for it in relay.facts if isinstance(it, EventExpired)]
    assert fact.outbox_id == str(stale)
    assert query(relay.url, "SELECT * FROM alerts") == []


@pytest.mark.parametrize("before", ["failing", "dead"])
async def test_what_waited_in_back_off_expires_too(relay: Relay, before: str) -> None:
    first, second = relay.add(made("a", expires_in=HOUR), made("a"))
    dead = "now()" if before == "dead" else "NULL"
    query(
        relay.url,
        f"UPDATE outbox_events SET publish_attempts = 3, publish_error = 'no', dead_at = {dead},"
        " available_at = now(), expires_at = now() - interval '1 s' WHERE id = %s",
        first,
    )
    if before == "dead":
        assert codes(await outbox(relay).retry([first], BOB)) == ["EXPIRED"]
        query(relay.url, "UPDATE outbox_events SET dead_at = NULL WHERE id = %s", first)
    await relay.drained()
    assert await relay.ids() == [str(second)]
    assert await listed(relay, "expired") == [first]


async def test_a_default_of_a_type_holds_for_producers_in_sql(relay: Relay) -> None:
    late = relay.insert(occurred_at=datetime.now(UTC) - 2 * HOUR)
    delayed = relay.insert(occurred_at=datetime.now(UTC) - 2 * HOUR, available_at=datetime.now(UTC))
    never = relay.insert(occurred_at=datetime.now(UTC) - 2 * HOUR, expires_at="infinity")
    soon, other = relay.insert(), relay.insert(event_type="other", occurred_at=LONG_AGO)
    await relay.drained(relay.command(expires_in={"vibe_created": HOUR}))
    assert await listed(relay, "expired") == [late]
    sent = {it.headers["Nats-Msg-Id"]: it.headers.get("Relay-Expires-At") for it in await relay.messages()}
    assert sent.keys() == {str(it) for it in (delayed, never, soon, other)}
    assert (sent[str(never)], sent[str(other)]) == (None, None)
    assert datetime.fromisoformat(str(sent[str(soon)])) == expiry(relay, soon)


@pytest.mark.parametrize("moment", ["-infinity", "4000-01-01 BC", "12000-01-01"])
def test_a_time_that_no_client_reads_is_refused(database_url: str, moment: str) -> None:
    sql = (
        "INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, expires_at)"
        " VALUES ('it', 'it', 'it', '{}', %s)"
    )
    with (
        psycopg.connect(database_url, options="-c relay.restoring=off") as producer,
        pytest.raises(psycopg.errors.CheckViolation, match="chk_outbox_producer"),
    ):
        producer.execute(sql, [moment])


@pytest.mark.parametrize(("word", "until"), [(HOUR, "soon"), (NEVER, "never")])
async def test_a_stale_event_goes_on_only_with_a_new_time(relay: Relay, word: timedelta, until: str) -> None:
    [id] = relay.add(made("a", expires_at=LONG_AGO))
    await relay.drained()
    refused = await outbox(relay).reopen([id], BOB)
    assert codes(refused) == ["EXPIRED"]
    assert "--expires-in" in str(refused.refused[0][1].hint)
    assert codes(await outbox(relay).discard([id], BOB)) == ["NOT_STOPPABLE"]
    assert codes(await outbox(relay).retry([id], BOB)) == ["NOT_PUBLISHABLE"]
    assert codes(await outbox(relay).replay([id], BOB)) == ["NOT_REPLAYABLE"]
    assert (await outbox(relay).reopen([id], BOB, expires_in=word)).done == (str(id),)
    await relay.drained()
    [message] = await relay.messages()
    assert ("Relay-Expires-At" in message.headers) == (until == "soon")
    about = query(relay.url, "SELECT about FROM audit_log WHERE action = 'outbox.reopen'")
    assert [it["about"]["expires_in"] for it in about] == ["60 min" if until == "soon" else "never"]


async def test_a_published_event_that_is_stale_is_replayed_only_with_a_new_time(relay: Relay) -> None:
    [id] = relay.add(made("a", expires_in=HOUR))
    await relay.drained()
    query(relay.url, "UPDATE outbox_events SET expires_at = now() - interval '1 s'")
    assert codes(await outbox(relay).replay([id], BOB)) == ["EXPIRED"]
    assert (await outbox(relay).replay([id], BOB, expires_in=HOUR)).done == (str(id),)
    await relay.drained()
    assert len(await relay.ids()) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_producer_writes_times_by_the_clock_of_the_database(
    database_url: str, kind: str
) -> None:
    async with producing(kind, database_url) as producer:
        await producer.add(made("a", deliver_at=HOUR, expires_in=HOUR), made("b"), made("c", expires_at=LONG_AGO))
        await producer.call("commit")
    rows = query(
        database_url,
        "SELECT available_at - occurred_at AS delay, expires_at - occurred_at AS life, expires_at"
        " FROM outbox_events ORDER BY seq",
    )
    assert [(it["delay"], it["life"]) for it in rows[:2]] == [(HOUR, 2 * HOUR), (None, None)]
    assert rows[2]["expires_at"] == LONG_AGO


def test_what_add_is_given_goes_before_what_the_event_says(database_url: str) -> None:
    @event("price_changed", aggregate_type="price", aggregate_id="id", expires_in=timedelta(minutes=5))
    class PriceChanged(BaseModel):
        id: str

    box = Outbox("shop", undeclared=True)
    with psycopg.connect(database_url) as connection:
        box.add(connection, PriceChanged(id="a"))
        box.add(connection, PriceChanged(id="a"), expires_in=HOUR)
        box.add(connection, PriceChanged(id="a"), expires_at=LONG_AGO, deliver_at=LONG_AGO)
    rows = query(
        database_url,
        "SELECT expires_at - occurred_at AS life, expires_at, available_at FROM outbox_events ORDER BY seq",
    )
    assert [it["life"] for it in rows[:2]] == [timedelta(minutes=5), HOUR]
    assert (rows[2]["expires_at"], rows[2]["available_at"]) == (LONG_AGO, LONG_AGO)


@pytest.mark.parametrize(
    "wrong",
    [
        {"expires_in": timedelta()},
        {"expires_in": AGO},
        {"expires_in": 5},
        {"expires_in": timedelta.max},
        {"expires_at": datetime(2020, 1, 1)},  # noqa: DTZ001
        {"expires_at": LONG_AGO, "expires_in": HOUR},
        {"deliver_at": AGO},
        {"deliver_at": "soon"},
        {"deliver_at": HOUR, "available_at": LONG_AGO},
    ],
)
def test_a_wrong_time_is_refused_before_anything_is_written(database_url: str, wrong: dict[str, Any]) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(InvalidTimestamp):
        Outbox("shop", undeclared=True).add(
            connection, Event(event_type="it", aggregate_type="it", aggregate_id="a", payload={}, **wrong)
        )


# --- the stream removes what expires ---


async def test_a_message_that_the_stream_removed_in_time_is_no_loss(relay: Relay) -> None:
    await relay.update_stream(allow_msg_ttl=True)
    _, removed = relay.add(made("a"), made("a", expires_in=timedelta(seconds=1)))
    await relay.drained(relay.command(ttl=True))
    sent, _ = relay.add(made("a", expires_in=HOUR), made("a"))
    await relay.drained(relay.command(ttl=True))
    [message] = [it for it in await stored(relay) if it.headers["Nats-Msg-Id"] == str(sent)]
    assert 3600 < int(message.headers["Nats-TTL"]) <= 3602

    async def gone() -> bool:
        return len(await stored(relay)) == 3

    await eventually("the stream has removed it", gone)
    for repair in (False, True):
        report = only(await command(relay).everything(repair=repair))
        assert (report.tail.count, report.middle.count) == (0, 0)
    assert relay.row(removed)["published_at"] is not None

    async def delete(js: Any) -> None:
        await js.delete_msg(relay.stream, message.seq)

    await relay.admin(delete)
    await command(relay).everything(repair=True)
    assert [it["id"] for it in relay.unpublished()] == [sent]


async def stored(relay: Relay) -> list[Any]:
    found: list[Any] = []

    async def read(js: Any) -> None:
        last = (await js.stream_info(relay.stream)).state.last_seq
        for seq in range(1, last + 1):
            with suppress(NotFoundError):
                found.append(await js.get_msg(relay.stream, seq))

    await relay.admin(read)
    return found


async def test_a_stream_that_removes_nothing_takes_what_expires_all_the_same(relay: Relay) -> None:
    ids = relay.add(made("a", expires_in=HOUR), made("a"), made("b", expires_in=HOUR))
    await relay.drained(relay.command(ttl=True))
    messages = await relay.messages()
    assert {it.headers["Nats-Msg-Id"] for it in messages} == {str(it) for it in ids}
    assert [it for it in messages if "Nats-TTL" in it.headers] == []
    assert not relay.publisher.takes_ttl
    assert {relay.row(it)["publish_attempts"] for it in ids} == {1}


# --- messages ---


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


def inbox(sub: Subscription) -> PostgresMessageOperations:
    return PostgresMessageOperations(sub.pool.connection)


async def state(sub: Subscription, id: UUID) -> str:
    found = await inbox(sub).get(id)
    assert found is not None
    return str(found["status"])


async def handled(sub: Subscription, id: UUID, answer: int = 200, *, chunk: bool = False) -> bool:
    """Run a job for a message; returns whether its handler was asked."""
    handler = Handler.answering(answer)
    if chunk:
        await sub.chunk(handler).run([id])
    else:
        await sub.process(handler).process(id)
    return bool(handler.requests)


@pytest.mark.parametrize("chunk", [False, True])
async def test_a_stale_message_is_acknowledged_without_a_call(sub: Subscription, chunk: bool) -> None:
    stale = await sub.send(Relay_Expires_At="2020-01-01T00:00:00Z")
    odd = await sub.send(Relay_Expires_At="tomorrow")
    await sub.pull().accept(await sub.fetch())
    assert [await handled(sub, id, chunk=chunk) for id in (stale, odd)] == [False, True]
    assert [await state(sub, id) for id in (stale, odd)] == ["expired", "processed"]
    await eventually("both are acknowledged", lambda: settled(sub))
    row = await sub.row(stale)
    assert (row["attempts"], row["expires_at"]) == (0, LONG_AGO)
    [found] = (await inbox(sub).find(MessageFilter(statuses=["expired"]), 9)).items
    assert (found["id"], found["error_code"]) == (stale, "expired")
    assert (await inbox(sub).find(MessageFilter(statuses=["processed", "discarded", "dead"]), 9)).total == 1
    assert [it.message_id for it in sub.facts if isinstance(it, MessageExpired)] == [stale]
    assert await sub.query("SELECT * FROM dead_letters") == []


async def settled(sub: Subscription) -> bool:
    return await sub.unacked() == 0


async def test_a_subscription_may_say_how_long_a_message_is_worth_handling(sub: Subscription) -> None:
    """Also one that waits for another attempt. Its key goes on."""
    sub.keep_order()
    first, second = [await sub.send(Relay_Partition_Key="a") for _ in range(2)]
    await sub.pull(expires_in=HOUR).accept(await sub.fetch())
    assert await handled(sub, first, 503)
    await sub.query(
        "UPDATE inbox_messages SET expires_at = expires_at - interval '1 h', next_attempt_at = now()"
        " WHERE message_id = %s",
        first,
    )
    assert not await handled(sub, first)
    assert await state(sub, first) == "expired"
    assert await handled(sub, second)
    assert codes(await inbox(sub).reopen([first], BOB)) == ["EXPIRED"]
    assert codes(await inbox(sub).retry([first], BOB)) == ["NOT_RETRYABLE"]
    assert (await inbox(sub).reopen([first], BOB, expires_in=NEVER)).done == (str(first),)
    assert await handled(sub, first)
    assert await state(sub, first) == "processed"


async def test_a_stale_dead_letter_is_requeued_only_with_a_new_time(sub: Subscription) -> None:
    id = await sub.received(Relay_Expires_At="9000-01-01T00:00:00Z")
    assert await handled(sub, id, 422)
    await sub.query("UPDATE inbox_messages SET expires_at = now() - interval '1 s'")
    incidents = PostgresIncidents(sub.pool.connection)
    await incidents.record_rows([id])
    [letter] = await sub.query("SELECT id FROM dead_letters")
    assert codes(await incidents.requeue([letter["id"]], BOB)) == ["EXPIRED"]
    assert (await incidents.requeue([letter["id"]], BOB, expires_in=HOUR)).done
    assert await handled(sub, id)


# --- tasks ---


@pytest.fixture(params=["in a thread", "in a thread, claimed ahead", "on the loop"])
async def tasks(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.threads, tasks.ahead = "thread" in request.param, "ahead" in request.param
        yield tasks


async def test_a_stale_task_is_not_run(tasks: Tasks) -> None:
    ran: list[int] = []

    def send(mail: Mail) -> None:
        ran.append(mail.n)

    tasks.register(send, expires_in="1h")
    [late] = tasks.schedule(Mail(n=1), expires_at=LONG_AGO)
    [usual, delayed] = [tasks.schedule(Mail(n=n), **more)[0] for n, more in ((2, {}), (3, {"delay": HOUR}))]
    for id in (late, usual):
        await tasks.run(id)
    assert ran == [2]
    async with connected(tasks.url, "test") as source:
        operations = PostgresTaskOperations(source)
        [found] = (await operations.find(TaskFilter(statuses=["expired"]), 9)).items
        assert (found["id"], found["status"], found["attempts"]) == (late, "expired", 0)
        assert (await operations.find(TaskFilter(statuses=["cancelled", "failed"]), 9)).total == 0
        assert codes(await operations.retry([late], BOB)) == ["EXPIRED"]
        assert codes(await operations.reopen([late], BOB)) == ["EXPIRED"]
        assert (await operations.reopen([late], BOB, expires_in=NEVER)).done == (str(late),)
    await tasks.run(late)
    assert ran == [2, 1]
    assert [it.task_id for it in tasks.facts if isinstance(it, TaskExpired)] == [late]
    sql = "SELECT expires_at - created_at AS life FROM task_outbox WHERE id = ANY (%s) ORDER BY seq"
    lives = [it["life"] for it in query(tasks.url, sql, [usual, delayed])]
    assert [round(it / HOUR, 2) for it in lives] == [1, 2]


@pytest.mark.parametrize("wrong", [{"expires_in": AGO}, {"expires_in": HOUR, "expires_at": LONG_AGO}])
def test_a_task_with_a_wrong_time_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        background_task("mail", {}, registered=False, **wrong)


# --- operators ---


def test_the_command_line_lists_and_reopens_what_has_expired(tmp_path: Path, database_url: str) -> None:
    shell = Shell(tmp_path, database_url)
    sql = (
        "INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, expires_at, published_at,"
        " dead_at, publish_error)"
        " VALUES ('it', 'it', 'it', '{}', now() - interval '1 h', now(), now(), 'EXPIRED: late') RETURNING id"
    )
    [row] = query(database_url, sql)
    [listed] = shell.json("outbox", "list", "--status", "expired", "--context", "sea")
    assert (listed["id"], listed["status"]) == (str(row["id"]), "expired")
    told = shell("outbox", "reopen", str(row["id"]), "--context", "sea", status=1)
    assert "error EXPIRED" in told
    told = shell("outbox", "reopen", str(row["id"]), "--context", "sea", "--expires-in", "never")
    assert "reopened 1" in told
    assert shell.json("outbox", "list", "--status", "waiting", "--context", "sea")[0]["id"] == str(row["id"])
