"""What an operator has stopped is handled and published by nobody, whatever was on its way, until it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.row_operations import EventFilter, PostgresOutboxOperations
from relay.devstack import NatsServer
from relay.domain.operators import Operator, Outcome
from tests.integration.consuming import LEASE, SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.publishing import Relay, event, query
from tests.integration.test_cli_operating import Shell
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
BOB = Operator("bob", "wrong prices")
SEA = ("--context", "sea", "--note", "wrong prices", "--yes")


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


def messages(sub: Subscription) -> PostgresMessageOperations:
    return PostgresMessageOperations(sub.pool.connection)


async def status(sub: Subscription, id: UUID) -> str:
    found = await messages(sub).get(id)
    assert found is not None
    return str(found["status"])


async def came(sub: Subscription, *keys: str) -> list[UUID]:
    sent = [await sub.send(**{"Relay_Partition_Key": key} if key else {}) for key in keys]
    await sub.pull().accept(await sub.fetch())
    return sent


async def sweep(sub: Subscription) -> set[UUID]:
    """What a sweep finds once everybody had time enough."""
    impatient = type(sub.inbox)(sub.pool, grace=timedelta(0))
    return set(await impatient.overdue(SUBSCRIPTION, 100))


async def handled(sub: Subscription, id: UUID, answer: int = 200) -> bool:
    """Run a job for a message, as it may still lie in Redis; returns whether the handler was asked."""
    handler = Handler.answering(answer)
    await sub.process(handler).process(id)
    return bool(handler.requests)


async def audited(sub: Subscription) -> list[tuple[Any, ...]]:
    rows = await sub.query("SELECT action, ids, actor, note FROM audit_log ORDER BY id")
    return [tuple(row.values()) for row in rows]


def refusals(outcome: Outcome) -> dict[str, tuple[str, str]]:
    return {id: (error.code, error.message) for id, error in outcome.refused}


# --- messages ---


@pytest.mark.parametrize(("stop", "back"), [("hold", "release"), ("discard", "reopen")])
@pytest.mark.parametrize("failed", [False, True])
async def test_a_stopped_message_is_handled_by_no_job_and_no_sweep_until_it_goes_on(
    sub: Subscription, stop: str, back: str, failed: bool
) -> None:
    stopped, other = await came(sub, "", "")
    if failed:
        assert await handled(sub, stopped, 503)
    assert (await getattr(messages(sub), stop)([stopped], BOB)).done == (str(stopped),)
    assert not await handled(sub, stopped)
    assert await sub.inbox.claim_many([stopped], [], LEASE, 20) == {}
    assert await sweep(sub) == {other}
    assert await handled(sub, other)

    async def acknowledged() -> bool:
        await sub.recovery().recover()
        return await sub.unacked() == 0

    await eventually("JetStream has all back", acknowledged)
    assert await status(sub, stopped) == {"hold": "held", "discard": "discarded"}[stop]
    assert (await getattr(messages(sub), back)([stopped], BOB)).done == (str(stopped),)
    assert await status(sub, stopped) == ("failing" if failed else "waiting")
    assert await sweep(sub) == {stopped}
    assert await handled(sub, stopped)
    row = await sub.row(stopped)
    assert (row["attempts"], row["processed_at"] is not None) == (1 + failed, True)
    assert await audited(sub) == [(f"inbox.{it}", [str(stopped)], "bob", "wrong prices") for it in (stop, back)]


@pytest.mark.parametrize("stop", ["hold", "discard"])
async def test_a_message_in_work_ends_and_is_reported(sub: Subscription, stop: str) -> None:
    """That is also one that a worker has claimed ahead."""
    [id] = await came(sub, "")
    outcomes: list[Outcome] = []

    async def during(_request: Any) -> Any:
        outcomes.append(await getattr(messages(sub), stop)([id], BOB))
        return Handler.answering(200).answer(_request)

    await sub.process(Handler(during)).process(id)
    past = {"hold": "held", "discard": "discarded"}[stop]
    assert refusals(outcomes[0]) == {str(id): ("NOT_STOPPABLE", f"is in work, not {past}")}
    assert await status(sub, id) == "processed"
    assert await audited(sub) == []


@pytest.mark.parametrize("stop", ["hold", "discard"])
async def test_a_worker_whose_claim_has_expired_settles_nothing_any_more(sub: Subscription, stop: str) -> None:
    [id] = await came(sub, "")
    claim = await sub.inbox.claim(id, timedelta(milliseconds=1))
    assert claim is not None
    await sub.query("SELECT pg_sleep(0.05)")
    assert (await getattr(messages(sub), stop)([id], BOB)).done
    assert await sub.inbox.mark_all_processed([claim]) == []
    assert await status(sub, id) == {"hold": "held", "discard": "discarded"}[stop]


async def test_messages_of_an_ordered_key_wait_behind_a_held_one_and_go_on_past_a_discarded_one(
    sub: Subscription,
) -> None:
    sub.keep_order()
    first, second, third, other = await came(sub, "a", "a", "a", "b")
    await messages(sub).hold([first], BOB)
    assert await sweep(sub) == {other}
    assert not await handled(sub, second)
    await messages(sub).discard([first], BOB)
    assert await sweep(sub) == {second, other}
    assert await handled(sub, second)
    await messages(sub).reopen([first], BOB)
    assert not await handled(sub, third)
    assert first in await sweep(sub)
    assert await handled(sub, first)
    assert await handled(sub, third)


async def test_a_reopened_message_waits_for_the_one_of_its_key_that_runs(sub: Subscription) -> None:
    sub.keep_order()
    first, second = await came(sub, "a", "a")
    await messages(sub).discard([first], BOB)
    assert await sub.inbox.claim(second, LEASE) is not None
    await messages(sub).reopen([first], BOB)
    assert not await handled(sub, first)


async def test_a_held_message_of_a_parked_key_stays_held_when_the_key_is_released(sub: Subscription) -> None:
    sub.keep_order("park")
    dead, held, behind = await came(sub, "a", "a", "a")
    assert await handled(sub, dead, 422)
    assert await status(sub, held) == "parked"
    await messages(sub).hold([held], BOB)
    await sub.query("DELETE FROM parked_keys")
    await sub.query("UPDATE inbox_messages SET stepped_over = true WHERE message_id = %s", dead)
    assert not await handled(sub, held)
    assert await sweep(sub) == set()
    await messages(sub).release([held], BOB)
    assert await handled(sub, held)
    assert behind in await sweep(sub)


async def test_what_is_over_is_refused_with_the_reason(sub: Subscription) -> None:
    done, dead, waiting = await came(sub, "", "", "")
    await handled(sub, done)
    await handled(sub, dead, 422)
    for stop in ("hold", "discard"):
        found = refusals(await getattr(messages(sub), stop)([done, dead, "nothing"], BOB))
        assert found == {
            str(done): ("NOT_STOPPABLE", "is processed"),
            str(dead): ("NOT_STOPPABLE", "is dead"),
            "nothing": ("UNKNOWN_MESSAGE", "there is no such message"),
        }
    assert refusals(await messages(sub).release([waiting], BOB)) == {
        str(waiting): ("NOT_STOPPED", "is not held but waiting")
    }
    assert refusals(await messages(sub).reopen([waiting], BOB)) == {
        str(waiting): ("NOT_STOPPED", "is not discarded but waiting")
    }


async def test_figures_know_what_is_held_and_count_it_nowhere_else(sub: Subscription) -> None:
    held, given_up, waiting = await came(sub, "", "", "")
    await handled(sub, held, 503)
    await messages(sub).hold([held], BOB)
    await messages(sub).discard([given_up], BOB)
    reader = PostgresBacklogReader(sub.pool.connection)
    found = await reader.inbox_backlog()
    assert (found.count, found.waiting, found.held, found.dead) == (2, 1, 1, 0)
    [of_sub] = (await reader.backlogs()).inbox
    assert (of_sub.count, of_sub.failing, of_sub.held) == (1, 0, 1)
    await messages(sub).hold([waiting], BOB)
    found = await reader.inbox_backlog()
    assert (found.waiting, found.waiting_age_seconds, found.held) == (0, 0.0, 2)
    for state, ids in {"held": {held, waiting}, "discarded": {given_up}, "processed": set[UUID]()}.items():
        page = await messages(sub).find(MessageFilter(statuses=[state]), 10)
        assert {row["message_id"] for row in page.items} == ids, state
        assert all(row["next_attempt_at"] is None for row in page.items)


@pytest.mark.parametrize("body", ['{"payload": {"order": {"id": 47}}}', '{"data": {"order": {"id": "47"}}}'])
async def test_messages_are_found_by_a_value_of_their_payload(sub: Subscription, body: str) -> None:
    [one] = await came(sub, "")
    await came(sub, "")
    await sub.query("UPDATE inbox_messages SET body = %s WHERE message_id = %s", body.encode(), one)
    other = await came(sub, "")
    await sub.query("UPDATE inbox_messages SET body = %s WHERE message_id = %s", b"\xff{", other[0])
    wanted = MessageFilter(statuses=["waiting"], payload="order.id=47")
    assert [row["message_id"] for row in (await messages(sub).find(wanted, 10)).items] == [one]


# --- events ---


def events(relay: Relay) -> PostgresOutboxOperations:
    return PostgresOutboxOperations(relay.pool.connection)


@pytest.mark.parametrize("before", ["waiting", "failing", "dead"])
async def test_a_discarded_event_is_not_published_and_its_key_goes_on_until_it_is_reopened(
    relay: Relay, before: str
) -> None:
    await relay.create_stream()
    first, second = relay.add(event("a"), event("a"))
    if before != "waiting":
        dead = "now()" if before == "dead" else "NULL"
        query(
            relay.url,
            "UPDATE outbox_events SET publish_attempts = 3, publish_error = 'no', available_at = now() + '1 h',"
            f" dead_at = {dead} WHERE id = %s RETURNING id",
            first,
        )
        query(relay.url, "DELETE FROM alerts RETURNING id")
    assert (await events(relay).discard([first], BOB)).done == (str(first),)
    await relay.drained()
    assert await relay.ids() == [str(second)]
    [found] = (await events(relay).find(EventFilter(statuses=["discarded"]), 10)).items
    assert (found["id"], found["status"], found["published_seq"]) == (first, "discarded", None)
    for state in ("published", "dead", "waiting", "failing"):
        assert first not in {it["id"] for it in (await events(relay).find(EventFilter(statuses=[state]), 9)).items}
    assert query(relay.url, "SELECT * FROM alerts") == []
    assert [error.code for _, error in (await events(relay).replay([first], BOB)).refused] == ["NOT_REPLAYABLE"]
    assert [error.code for _, error in (await events(relay).retry([first], BOB)).refused] == ["NOT_PUBLISHABLE"]
    assert (await events(relay).reopen([first], BOB)).done == (str(first),)
    [third] = relay.add(event("a"))
    await relay.drained()
    assert await relay.ids() == [str(second), str(first), str(third)]
    assert [code for _, (code, _) in refusals(await events(relay).discard([first, second], BOB)).items()] == [
        "NOT_STOPPABLE"
    ] * 2
    assert refusals(await events(relay).reopen([first], BOB)) == {str(first): ("NOT_STOPPED", "is not discarded")}


async def test_a_delayed_event_that_is_reopened_keeps_its_time(relay: Relay) -> None:
    [id] = relay.add(event("a"))
    query(relay.url, "UPDATE outbox_events SET available_at = now() + '1 h' RETURNING id")
    before = relay.row(id)
    await events(relay).discard([id], BOB)
    await events(relay).reopen([id], BOB)
    assert relay.row(id) == before


async def test_events_are_found_by_key_and_payload(relay: Relay) -> None:
    one, _ = relay.add(event("a", payload={"order": {"id": 47}}), event("b", payload={"order": {"id": 48}}))
    for wanted in ({"payload": "order.id=47"}, {"partition_key": relay.row(one)["partition_key"]}):
        page = await events(relay).find(EventFilter(statuses=["waiting"], **wanted), 10)
        assert [row["id"] for row in page.items] == [one]


# --- the command line ---


def test_the_command_line_stops_what_it_has_counted_and_says_so(shell: Shell, database_url: str) -> None:
    sql = """
        INSERT INTO inbox_messages
          (message_id, subject, subscription, event_type, body, enqueued_at, claimed_until)
        SELECT gen_random_uuid(), 'sea.event.it.v1', 'down', 'it', convert_to(payload, 'UTF8'), now(), until
        FROM (VALUES ('{"payload": {"price": 1}}', NULL), ('{"payload": {"price": 1}}', now() + interval '1 h'),
                     ('{"payload": {"price": 2}}', NULL)) AS given (payload, until)
        RETURNING message_id, claimed_until IS NULL AS free"""
    running = next(str(row["message_id"]) for row in query(database_url, sql) if not row["free"])
    told = shell("inbox", "hold", "--payload", "price=1", *SEA, status=1)
    assert "sea: held 1\n" in told
    assert f"error NOT_STOPPABLE: {running}: is in work, not held" in told
    [held] = shell.json("inbox", "list", "--status", "held", "--context", "sea")
    assert shell.json("backlog", "--context", "sea")[0]["inbox"]["held"] == 1
    assert shell("inbox", "release", held["id"], "--context", "sea", "--actor", "eve") == "sea: released 1\n"
    history = shell.json("inbox", "show", held["id"], "--context", "sea")["history"]
    assert [(it["action"], it["note"]) for it in history] == [
        ("inbox.hold", "wrong prices"),
        ("inbox.release", None),
    ]
    refused = shell("inbox", "discard", "--payload", "price", *SEA, status=1)
    assert "INVALID_REQUEST: payload: is no PATH=VALUE" in refused
