"""Plain functions handled in a worker's thread: what a lost claim, connection or thread leads to there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext
from relay import failpoints
from relay.adapters.postgres import function_connections
from relay.devstack import NatsServer
from relay.domain.errors import ClaimLost, DatabaseUnreachable
from relay.domain.reasons import code_of
from tests.integration.consuming import LEASE, subscribed
from tests.integration.python_handling import KINDS, WRITE, Handling, Vibe, handling, nothing
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = 'handling' AND pid <> pg_backend_pid()"
)


@pytest.fixture(params=["claimed alone", "claimed ahead"])
async def calls(
    request: pytest.FixtureRequest, database_url: str, nats_server: NatsServer
) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        calls.ahead = request.param == "claimed ahead"
        yield calls


@pytest.fixture(params=["sync_session", "sync_psycopg"])
def kind(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return KINDS[request.param]


# --- the transaction ---


async def test_only_the_claim_is_not_waited_for_on_disk(calls: Handling) -> None:
    seen: list[Any] = []

    def look(vibe: Vibe, connection: psycopg.Connection[Any]) -> None:
        seen.append(connection.execute("SELECT current_setting('synchronous_commit')").fetchone())

    for _ in range(2):
        await calls.process(calls.handler(look)).process(await calls.received())
    assert seen == [("on",), ("on",)]


async def test_a_connection_serves_many_messages_whatever_the_driver_forgets(calls: Handling) -> None:
    """Undoing a savepoint has psycopg deallocate every prepared statement of the session."""
    sessions: list[int] = []

    def undo(vibe: Vibe, connection: psycopg.Connection[Any], context: MessageContext) -> None:
        sessions.append(connection.info.backend_pid)
        connection.execute(WRITE.format(context.message_id))
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT 1", prepare=True)

    handler = calls.handler(undo)
    ids = [await calls.received() for _ in range(4)]
    for id in ids:
        assert await calls.process(handler).process(id) is None
    assert [effect["message_id"] for effect in await calls.effects()] == ids
    assert len(set(sessions)) == 1


async def test_a_claim_that_is_not_free_leaves_the_connection_to_the_next(calls: Handling) -> None:
    handler = calls.handler(KINDS["sync_session"](nothing))
    id = await calls.received()
    for _ in range(5):
        await calls.process(handler).process(id)
    assert len(await calls.effects()) == 1
    [row] = await calls.sub.query(
        "SELECT count(*) AS n, count(*) FILTER (WHERE state <> 'idle') AS busy FROM pg_stat_activity "
        "WHERE application_name = 'handling'"
    )
    assert (row["n"], row["busy"]) == (1, 0)


async def test_an_aborted_transaction_that_the_function_hides_is_not_taken_for_done(calls: Handling) -> None:
    def hide(vibe: Vibe, connection: psycopg.Connection[Any], context: MessageContext) -> None:
        connection.execute(WRITE.format(context.message_id))
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM no_such_table")

    id = await calls.received()
    assert await calls.process(calls.handler(hide)).process(id) is not None
    assert (await calls.effects(), await calls.state(id)) == ([], "open")
    assert (await calls.sub.row(id))["last_error"] == "InFailedSqlTransaction 25P02"


async def test_a_transaction_limited_for_one_row_does_not_limit_the_next(calls: Handling) -> None:
    transactions = calls.handler(timeout=7).transactions
    seen: list[Any] = []

    def look(limit: timedelta | None) -> None:
        nobodys = function_connections.Settlement("inbox/settle", {"message_id": uuid4(), "token": uuid4()}, limit)
        with transactions.for_row(limit).settle(nobodys) as transaction:
            seen.extend(transaction.connection.execute("SELECT current_setting('statement_timeout')"))

    for limit in (timedelta(seconds=3), None, timedelta(seconds=2)):
        with pytest.raises(ClaimLost):
            look(limit)
    # A statement ends a moment before the limit, at most a second.
    assert seen == [("2250ms",), ("6s",), ("1500ms",)]


# --- a lost connection ---


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Have something done between the mark and the commit."""

    def put(act: Callable[[], None]) -> None:
        monkeypatch.setattr(function_connections, "enabled", lambda: True)
        monkeypatch.setattr(function_connections, "reach", lambda _point: act())

    yield put
    monkeypatch.undo()


async def test_a_connection_that_breaks_between_mark_and_commit_leaves_nothing(
    calls: Handling, kind: Callable[..., Any], between: Callable[..., None]
) -> None:
    broken: list[int] = []

    def terminate() -> None:
        if not broken:
            broken.append(1)
            with psycopg.connect(calls.sub.url, autocommit=True) as connection:
                connection.execute(END_OTHERS)

    between(terminate)
    id, handler = await calls.received(), calls.handler(kind(nothing))
    assert await calls.process(handler).process(id) is not None
    assert (await calls.effects(), await calls.state(id)) == ([], "open")
    assert (await calls.sub.row(id))["last_error"].startswith("OperationalError at ")
    await calls.again(id, handler)
    assert [effect["message_id"] for effect in await calls.effects()] == [id]


async def test_a_reply_to_the_commit_that_is_lost_is_not_taken_for_a_failure_of_the_row(
    calls: Handling, kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = function_connections.FunctionConnection.settle

    def lose(self: function_connections.FunctionConnection, settlement: function_connections.Settlement) -> None:
        settle(self, settlement)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(function_connections.FunctionConnection, "settle", lose)
    id, handler = await calls.received(), calls.handler(kind(nothing))
    assert await calls.process(handler).process(id) is None
    monkeypatch.undo()
    await calls.again(id, handler)
    assert len(await calls.effects()) == 1
    row = await calls.sub.row(id)
    assert (await calls.state(id), row["last_error"], row["attempts"]) == ("processed", None, 1)


async def test_connections_are_closed_without_a_word(
    calls: Handling, kind: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    handler = calls.handler(kind(nothing))
    await calls.process(handler).process(await calls.received())
    await calls.sub.query(END_OTHERS)
    await calls.process(handler).process(await calls.received())
    assert len(await calls.effects()) == 2
    await handler.transactions.close()

    async def none_left() -> bool:
        return not await calls.sub.query("SELECT FROM pg_stat_activity WHERE application_name = 'handling'")

    await eventually("no connection is left", none_left)
    assert caplog.messages == []


async def test_a_claim_without_a_server_says_so_and_spends_nothing(calls: Handling) -> None:
    handler = calls.handler(KINDS["sync_session"](nothing))
    id = await calls.received()
    handler.transactions._connections._connection["port"] = 1
    with pytest.raises(DatabaseUnreachable):
        await calls.process(handler).process(id)
    del handler.transactions._connections._connection["port"]
    await calls.process(handler).process(id)
    assert ((await calls.sub.row(id))["attempts"], await calls.state(id)) == (1, "processed")


# --- time ---


async def test_a_long_function_keeps_its_claim(calls: Handling) -> None:
    calls.sub.lease = timedelta(seconds=2)
    go_on, begun = threading.Event(), threading.Event()

    def wait(session: Session) -> None:
        begun.set()
        go_on.wait(30)

    id = await calls.received()
    running = asyncio.create_task(
        calls.process(calls.handler(KINDS["sync_session"](wait), timeout=30)).process(id)
    )
    await asyncio.to_thread(begun.wait, 10)
    first = (await calls.sub.row(id))["claimed_until"]

    async def renewed() -> bool:
        return bool((await calls.sub.row(id))["claimed_until"] > first + timedelta(seconds=2))

    await eventually("the claim was renewed beyond its first lease", renewed)
    assert await calls.sub.inbox.claim(id, LEASE) is None
    go_on.set()
    assert await running is None
    assert await calls.state(id) == "processed"


async def test_a_worker_goes_on_while_functions_hang(calls: Handling, kind: Callable[..., Any]) -> None:
    go_on = threading.Event()
    hang = calls.handler(kind(lambda _: go_on.wait(30)), timeout=0.3, limit=timedelta(seconds=60))
    ids = [await calls.received() for _ in range(3)]
    one = calls.process(hang)
    for id in ids:
        assert await one.process(id) is not None
        assert code_of((await calls.sub.row(id))["last_error"]) == "timeout"
    go_on.set()

    async def given_back() -> bool:
        # Theirs, and that which has asked what they were waiting for.
        return hang.transactions.idle == 4

    await eventually("their connections are given back", given_back)
    assert await calls.effects() == []


# --- a mixed module, and what needs no transaction ---


async def test_a_function_without_transaction_is_called_while_none_is_open(calls: Handling) -> None:
    states: list[Any] = []

    def plain(vibe: Vibe) -> None:
        with psycopg.connect(calls.sub.url) as connection:
            states.extend(
                connection.execute("SELECT state FROM pg_stat_activity WHERE application_name = 'handling'")
            )

    def writing(vibe: Vibe, session: Session, context: MessageContext) -> None:
        session.execute(text(WRITE.format(context.message_id)))

    for functions in ([plain], [plain, writing]):
        id = await calls.received()
        await calls.process(calls.handler(*functions)).process(id)
        assert await calls.state(id) == "processed"
    assert {state for (state,) in states} == {"idle"}
    await calls.sub.acked()


async def test_a_function_without_transaction_that_lost_its_claim_settles_nothing(calls: Handling) -> None:
    loop = asyncio.get_running_loop()
    id = await calls.received()
    stolen: list[dict[str, Any]] = []

    def steal(vibe: Vibe) -> None:
        stolen.append(asyncio.run_coroutine_threadsafe(calls.steal(id), loop).result(10))

    assert await calls.process(calls.handler(steal)).process(id) is None
    assert [await calls.sub.row(id)] == stolen
    assert await calls.sub.unacked() == 1


# --- failpoints ---


async def test_an_armed_failpoint_is_passed_between_mark_and_commit(
    calls: Handling, kind: Callable[..., Any], tmp_path: Any
) -> None:
    failpoints.enable(tmp_path)
    try:
        failpoints.arm(tmp_path, "after_mark_before_handler_commit", failpoints.FailpointAction.LOST_REPLY)
        id, handler = await calls.received(), calls.handler(kind(nothing))
        assert await calls.process(handler).process(id) is not None
    finally:
        failpoints.enable(None)
    assert failpoints.reached(tmp_path, "after_mark_before_handler_commit") is not None
    assert (await calls.effects(), await calls.state(id)) == ([], "open")
