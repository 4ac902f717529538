"""Python handlers of a chunk share a transaction, and what one of them does to it happens to no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.functions import MAX_CALLS
from consumer.handlers import AlreadyProcessed, MessageContext, Poison
from relay import Event, Outbox
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.devstack import NatsServer
from relay.domain.facts import HandlerAnswered
from relay.domain.reasons import code_of
from tests.integration.consuming import subscribed
from tests.integration.python_handling import WRITE, Handling, handling

pytestmark = pytest.mark.anyio
OUTBOX = Outbox("down")
LONG = timedelta(seconds=60)
Run = Callable[[str], Any]


class Wish(BaseModel):
    """What its handler is to do once it has written its effect."""

    do: str = "nothing"
    key: str = ""


Deed = Callable[[Run, Wish], Any]


def with_session(deed: Deed) -> Callable[..., Any]:
    def handle(wish: Wish, session: Session, context: MessageContext) -> None:
        run = lambda sql: session.execute(text(sql))  # noqa: E731
        run(WRITE.format(context.message_id))
        deed(run, wish)

    return handle


def with_connection(deed: Deed) -> Callable[..., Any]:
    def handle(wish: Wish, connection: psycopg.Connection[Any], context: MessageContext) -> None:
        connection.execute(WRITE.format(context.message_id))
        deed(connection.execute, wish)

    return handle


def with_async_session(deed: Deed) -> Callable[..., Any]:
    async def handle(wish: Wish, session: AsyncSession, context: MessageContext) -> None:
        run = lambda sql: session.execute(text(sql))  # noqa: E731
        await run(WRITE.format(context.message_id))
        await _awaited(deed(run, wish))

    return handle


def with_async_connection(deed: Deed) -> Callable[..., Any]:
    async def handle(wish: Wish, connection: psycopg.AsyncConnection[Any], context: MessageContext) -> None:
        await connection.execute(WRITE.format(context.message_id))
        await _awaited(deed(connection.execute, wish))

    return handle


async def _awaited(result: Any) -> None:
    if asyncio.iscoroutine(result):
        await result


KINDS = {it.__name__: it for it in (with_session, with_connection, with_async_session, with_async_connection)}


@pytest.fixture
async def calls(database_url: str, nats_server: NatsServer) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        yield calls


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[Deed], Callable[..., Any]]:
    return KINDS[request.param]


def is_async(kind: Callable[..., Any]) -> bool:
    return "async" in kind.__name__


async def play(calls: Handling, kind: Any, deed: Deed, *wishes: str, **options: Any) -> dict[str, list[UUID]]:
    """Handle a chunk of one message per wish; returns the messages by what became of them."""
    ids = [await calls.received({"do": wish}) for wish in wishes]
    later = await calls.sub.chunk(calls.handler(kind(deed), **options)).run(ids)
    found: dict[str, list[UUID]] = {"later": [*later], "ids": ids}
    for message_id in ids:
        found.setdefault(await calls.state(message_id), []).append(message_id)
    return found


async def effects(calls: Handling) -> list[UUID]:
    return sorted(effect["message_id"] for effect in await calls.effects())


def fail(_run: Run, wish: Wish) -> None:
    match wish.do:
        case "poison":
            raise Poison("not this one")
        case "again":
            raise AlreadyProcessed("done before")
        case "busy":
            raise RuntimeError("not now")


async def test_a_chunk_is_one_transaction_out_of_which_what_fails_is_left(calls: Handling, kind: Any) -> None:
    found = await play(calls, kind, fail, "nothing", "poison", "nothing", "busy", "again", "nothing")
    ids = found["ids"]
    assert found["processed"] == [ids[0], ids[2], ids[4], ids[5]]
    assert (found["dead"], found["open"], found["later"]) == ([ids[1]], [ids[3]], [ids[3]])
    assert await effects(calls) == sorted([ids[0], ids[2], ids[5]])
    rows = await calls.sub.query(
        "SELECT xmin::text AS xid FROM inbox_messages WHERE processed_at IS NOT NULL AND message_id <> %s", ids[4]
    )
    # Each effect was written in the transaction that has ended its message, which is the same for all.
    assert {effect["xid"] for effect in await calls.effects()} == {row["xid"] for row in rows}
    assert len({row["xid"] for row in rows}) == 1
    assert (await calls.sub.row(ids[3]))["last_error"].startswith(f"RuntimeError at {__name__}.fail:")


async def test_a_chunk_that_gets_no_connection_spends_no_attempts(calls: Handling, kind: Any) -> None:
    handler = calls.handler(kind(fail))
    budget = handler.transactions._connections._budget
    budget.wait, budget.most_alike = 0.01, 0
    ids = [await calls.received({"do": "nothing"}) for _ in range(3)]
    assert [*await calls.sub.chunk(handler).run(ids)] == ids
    rows = [await calls.sub.row(id) for id in ids]
    assert [(row["attempts"], row["processed_at"], row["claim_token"]) for row in rows] == [(0, None, None)] * 3


async def test_a_chunk_that_takes_long_is_several_transactions(calls: Handling, kind: Any) -> None:
    calls.max_transaction = 0.0
    found = await play(calls, kind, fail, "nothing", "busy", "nothing", "nothing")
    assert found["processed"] == [found["ids"][0], *found["ids"][2:]]
    assert len({effect["xid"] for effect in await calls.effects()}) == 3


async def test_a_refused_statement_undoes_its_own_message_only(calls: Handling, kind: Any) -> None:
    def deed(run: Run, wish: Wish) -> Any:
        return run("SELECT 1 / 0") if wish.do == "divide" else None

    found = await play(calls, kind, deed, "nothing", "divide", "nothing")
    ids = found["ids"]
    assert (found["processed"], found["open"]) == ([ids[0], ids[2]], [ids[1]])
    assert await effects(calls) == sorted([ids[0], ids[2]])
    assert (await calls.sub.row(ids[1]))["last_error"].startswith("DivisionByZero 22012 at ")


@pytest.mark.parametrize("sql", ["SELECT pg_terminate_backend(pg_backend_pid())", "ROLLBACK"])
async def test_a_handler_that_breaks_the_transaction_breaks_its_own(calls: Handling, kind: Any, sql: str) -> None:
    def deed(run: Run, wish: Wish) -> Any:
        return run(sql) if wish.do == "break" else None

    found = await play(calls, kind, deed, "nothing", "break", "nothing")
    ids = found["ids"]
    assert {ids[0], ids[2]} <= set(found["processed"])
    assert {ids[0], ids[2]} == set(await effects(calls))
    assert {row["attempts"] for row in await calls.sub.rows()} == {1}
    if sql != "ROLLBACK":
        assert found["open"] == [ids[1]]


async def test_a_commit_that_one_message_spoils_is_made_for_the_others(calls: Handling, kind: Any) -> None:
    await calls.sub.query("CREATE TABLE parents (id int PRIMARY KEY)")
    await calls.sub.query("CREATE TABLE kids (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")

    def deed(run: Run, wish: Wish) -> Any:
        return run("INSERT INTO kids VALUES (1)") if wish.do == "orphan" else None

    found = await play(calls, kind, deed, "nothing", "orphan", "nothing")
    ids = found["ids"]
    assert (found["processed"], found["open"]) == ([ids[0], ids[2]], [ids[1]])
    assert await effects(calls) == sorted([ids[0], ids[2]])
    assert (await calls.sub.row(ids[1]))["last_error"].startswith("ForeignKeyViolation 23503 (kids_id_fkey)")


async def test_a_claim_that_one_message_loses_is_lost_for_it_alone(calls: Handling, kind: Any) -> None:
    loop = asyncio.get_running_loop()
    stolen: list[UUID] = []

    def deed(_run: Run, wish: Wish) -> Any:
        async def steal() -> None:
            if not stolen:
                rows = await calls.sub.rows()
                stolen.append(rows[1]["message_id"])
                await calls.steal(stolen[0])

        if wish.do != "steal":
            return None
        return steal() if is_async(kind) else asyncio.run_coroutine_threadsafe(steal(), loop).result(10)

    found = await play(calls, kind, deed, "nothing", "steal", "nothing")
    ids = found["ids"]
    assert (found["processed"], found["open"], found["later"]) == ([ids[0], ids[2]], [ids[1]], [])
    assert await effects(calls) == sorted([ids[0], ids[2]])
    assert (await calls.sub.row(ids[1]))["attempts"] == 2


@pytest.mark.parametrize("ended", [True, False])
async def test_a_handler_that_takes_too_long_fails_and_the_others_are_handled(
    calls: Handling, kind: Any, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the transaction that is left behind cannot be ended, as behind a pooler."""
    if not ended:
        monkeypatch.setattr(HandlerTransactions, "end_session", lambda _self, _pid: None)
    stop, asked = threading.Event(), []

    def deed(_run: Run, wish: Wish) -> Any:
        asked.append(wish.do)
        if wish.do != "hang":
            return None
        return asyncio.sleep(120) if is_async(kind) else stop.wait(120)

    began = time.monotonic()
    try:
        found = await play(calls, kind, deed, "nothing", "hang", "last", timeout=1.5, limit=LONG)
        ids = found["ids"]
        assert (found["processed"], found["open"], found["later"]) == ([ids[0], ids[2]], [ids[1]], [ids[1]])
        assert code_of((await calls.sub.row(ids[1]))["last_error"]) == "timeout"
    finally:
        stop.set()
    assert time.monotonic() - began < 100  # its own end is not waited for
    # What the thread goes on to do, now that it is awake, comes to nothing. It gives its slot back afterwards.
    for _ in range(MAX_CALLS):
        await asyncio.wait_for(calls._made[-1]._calls.slots.acquire(), 60)
    assert await effects(calls) == sorted([ids[0], ids[2]])
    assert (asked.count("hang"), asked.count("last")) == (1, 1)


async def test_what_one_that_hangs_has_locked_is_free_for_the_others(calls: Handling) -> None:
    """Before the time-out all were in one transaction; it is ended, or they would wait for its locks."""
    await calls.sub.query("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    await calls.sub.query("INSERT INTO counters VALUES (1, 0)")
    stop = threading.Event()

    def deed(run: Run, wish: Wish) -> Any:
        run("UPDATE counters SET n = n + 1")
        return stop.wait(20) if wish.do == "hang" else None

    try:
        found = await play(calls, with_session, deed, "nothing", "hang", "nothing", timeout=1.5, limit=LONG)
    finally:
        stop.set()
    assert found["processed"] == [found["ids"][0], found["ids"][2]]
    assert await calls.sub.query("SELECT n FROM counters") == [{"n": 2}]


async def test_messages_that_lose_a_deadlock_are_handled_alone_and_spend_no_attempt(
    calls: Handling, kind: Any
) -> None:
    """Two chunks lock two rows crosswise; nobody's verdict is that PostgreSQL had to choose.

    The loser comes again when the winner is done. Otherwise it could take the row that was just freed before the
    winner wakes up, which would be a second deadlock.
    """
    await calls.sub.query("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    await calls.sub.query("INSERT INTO counters VALUES (1, 0), (2, 0)")
    both, over = Meeting(2), threading.Event()

    def deed(run: Run, wish: Wish) -> Any:
        first, then = wish.do.split()
        update = "UPDATE counters SET n = n + 1 WHERE id = "
        if not is_async(kind):
            if both.over:
                over.wait(10)
            run(f"{update}{first}")
            both.wait()
            return run(f"{update}{then}")

        async def work() -> None:
            if both.over:
                await asyncio.to_thread(over.wait, 10)
            await run(f"{update}{first}")
            await asyncio.to_thread(both.wait)
            await run(f"{update}{then}")

        return work()

    handler = calls.handler(kind(deed))
    ids = [await calls.received({"do": wish}) for wish in ("1 2", "2 1")]

    async def handle(id: UUID) -> Any:
        try:
            return await calls.sub.chunk(handler).run([id])
        finally:
            over.set()

    assert await asyncio.gather(*map(handle, ids)) == [{}, {}]
    assert [await calls.state(id) for id in ids] == ["processed", "processed"]
    assert await calls.sub.query("SELECT n FROM counters") == [{"n": 2}, {"n": 2}]


class Meeting:
    """The first ``count`` who come wait for each other, later ones go through."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._left = count
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether all have come."""
        return self._left <= 0

    def wait(self) -> None:
        with self._lock:
            self._left -= 1
            late = self._left < 0
        if not late:
            self._barrier.wait(10)


# --- what sessions add to an outbox ---


def announce(key: str) -> Event:
    return Event(event_type="counted", aggregate_type="count", aggregate_id=key, payload={})


def sync_announcer(wish: Wish, session: Session) -> None:
    OUTBOX.add(session, announce(wish.key))
    session.commit()
    fail(lambda _sql: None, wish)


async def async_announcer(wish: Wish, session: AsyncSession) -> None:
    await OUTBOX.add(session, announce(wish.key))
    await session.commit()
    fail(lambda _sql: None, wish)


@pytest.mark.parametrize("announcer", [sync_announcer, async_announcer])
async def test_events_of_a_chunk_are_written_with_it_and_those_of_failed_messages_are_not(
    calls: Handling, announcer: Any
) -> None:
    wishes = [{"key": "a"}, {"key": "b", "do": "busy"}, {"key": "c"}]
    ids = [await calls.received(wish) for wish in wishes]
    await calls.sub.chunk(calls.handler(announcer)).run(ids)
    events = await calls.sub.query("SELECT aggregate_id, causation_id, xmin::text AS xid FROM outbox_events")
    assert {(event["aggregate_id"], event["causation_id"]) for event in events} == {("a", ids[0]), ("c", ids[2])}
    [row, _] = await calls.sub.query("SELECT xmin::text AS xid FROM inbox_messages WHERE processed_at IS NOT NULL")
    assert {event["xid"] for event in events} == {row["xid"]}


@pytest.mark.parametrize("announcer", [sync_announcer, async_announcer])
async def test_chunks_whose_events_have_the_same_keys_do_not_deadlock(calls: Handling, announcer: Any) -> None:
    """The keys of the messages say nothing of those of their events, so sorting by them does not help."""
    chunks = [[await calls.received({"key": key}) for key in keys] for keys in ("abcdef" * 3, "fedcba" * 3)]
    handler = calls.handler(announcer)
    later = await asyncio.gather(*(calls.sub.chunk(handler).run(chunk) for chunk in chunks))
    assert later == [{}, {}]
    events = await calls.sub.query("SELECT xmin::text AS xid, cmin::text AS command FROM outbox_events")
    assert len(events) == 36
    # One statement for each chunk, which takes its locks in one order.
    assert len({(event["xid"], event["command"]) for event in events}) == 2


async def test_a_chunk_may_ask_functions_of_every_kind(calls: Handling) -> None:
    told: list[str] = []

    def plain(wish: Wish) -> None:
        told.append("plain")
        fail(lambda _sql: None, wish)

    async def awaited(wish: Wish) -> None:
        told.append("awaited")
        fail(lambda _sql: None, wish)

    handler = calls.handler(plain, awaited, *(make(fail) for make in KINDS.values()))
    ids: dict[UUID, str] = {}
    for version in range(1, 8):
        for do in ("nothing", "busy"):
            ids[await calls.received({"do": do}, version=version)] = f"{version} {do}"
    later = await calls.sub.chunk(handler).run([*ids])
    assert {ids[id] for id in later} == {f"{version} busy" for version in range(1, 7)}
    states = {name: await calls.state(id) for id, name in ids.items()}
    # There is no function for version 7.
    expected = {name: "dead" if name[0] == "7" else "open" if "busy" in name else "processed" for name in states}
    assert states == expected
    assert sorted(told) == ["awaited", "awaited", "plain", "plain"]
    assert len(await effects(calls)) == 4
    assert len([fact for fact in calls.sub.facts if isinstance(fact, HandlerAnswered)]) == len(ids)


async def test_functions_that_share_a_transaction_share_the_time_that_it_took(calls: Handling) -> None:
    def deed(_run: Run, wish: Wish) -> None:
        time.sleep(0.3 if wish.do == "slow" else 0)

    await play(calls, with_session, deed, "nothing", "slow", "nothing")
    told = [fact.seconds for fact in calls.sub.facts if isinstance(fact, HandlerAnswered)]
    assert (len(told), len(set(told))) == (3, 1)
    assert sum(told) >= 0.3


async def test_a_payload_that_does_not_fit_is_a_dead_letter_of_its_own(calls: Handling) -> None:
    good, bad = [await calls.received({"do": "nothing"}), await calls.received({"do": 7})]
    await calls.sub.chunk(calls.handler(with_session(fail))).run([good, bad])
    assert [await calls.state(good), await calls.state(bad)] == ["processed", "dead"]


async def test_a_database_that_takes_no_transaction_fails_the_messages_and_ends(calls: Handling) -> None:
    calls.sub.url, right = calls.sub.url + "_missing", calls.sub.url
    handler = calls.handler(with_session(fail))
    calls.sub.url = right
    ids = [await calls.received({}) for _ in range(3)]
    later = await calls.sub.chunk(handler).run(ids)
    assert set(later) == set(ids)
