"""Python handlers: effect and ``processed_at`` are one transaction, and every exception has one consequence."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.handlers import (
    AlreadyProcessed,
    DomainError,
    HandlerRegistry,
    IncomingEvent,
    MessageContext,
    Poison,
    load,
)
from consumer.waiting import WaitForVersion
from relay import Event, Outbox, RequestContext
from relay.bus.errors import InvalidCommand
from relay.devstack import NatsServer
from relay.domain.disclosure import stack_of
from relay.domain.errors import ConnectionsBusy
from relay.domain.facts import HandlerAnswered, MessageProcessed
from relay.domain.policies import DeadLetter, DeadLetterClass
from relay.domain.reasons import code_of
from tests.integration.consuming import subscribed
from tests.integration.python_handling import (
    KINDS,
    Handling,
    InThread,
    Vibe,
    handling,
    nothing,
    sync_session,
)
from tests.pages import code
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
OUTBOX = Outbox("down")
_LONG = timedelta(seconds=60)


CONFLICT = "DO $$ BEGIN RAISE 'lost' USING ERRCODE = '{}'; END $$"


@pytest.fixture
async def calls(database_url: str, nats_server: NatsServer) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        yield calls


@pytest.fixture(params=[*KINDS, "sync_session, claimed ahead", "sync_psycopg, claimed ahead"])
def kind(request: pytest.FixtureRequest, calls: Handling) -> Callable[..., Any]:
    """Make a handler of each kind in turn: it writes its effect, then does what the test says."""
    name, comma, _ = request.param.partition(",")
    calls.ahead = bool(comma)
    return KINDS[name]


# --- one transaction ---


async def test_the_effect_and_the_row_are_settled_by_one_transaction(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    message_id = await calls.received()
    assert await calls.process(calls.handler(kind(nothing))).process(message_id) is None
    [row] = await calls.sub.query("SELECT xmin::text AS xid, * FROM inbox_messages")
    # A session's savepoint has a number of its own, so the effect's row is asked who wrote it.
    effects = await calls.sub.query("SELECT message_id, xmin::text AS xid FROM effects")
    assert effects == [{"message_id": message_id, "xid": row["xid"]}]
    assert row["processed_at"] >= row["received_at"]
    assert (row["attempts"], row["claim_token"]) == (1, None)
    await calls.sub.acked()
    assert [type(fact) for fact in calls.sub.facts[1:]] == [HandlerAnswered, MessageProcessed]


async def test_a_function_that_gets_no_connection_spends_no_attempt(
    calls: Handling, kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow functions hold all connections: the messages behind them must not become dead letters."""
    message_id = await calls.received()
    handler = calls.handler(kind(nothing))
    runner, connections = calls.process(handler), handler.transactions._connections._budget
    connections.wait = 0.01
    if calls.ahead:
        assert isinstance(runner, InThread)
        await asyncio.to_thread(runner.claim_ahead, [message_id])
        runner._ahead = False
        connections.close_idle()
    monkeypatch.setattr(connections, "most_alike", 0)
    with suppress(ConnectionsBusy):  # from the claim, which then counts nothing
        assert await runner.process(message_id) is not None
    row = await calls.sub.row(message_id)
    assert (row["attempts"], row["processed_at"], row["claim_token"]) == (0, None, None)
    monkeypatch.undo()
    await calls.again(message_id, handler)
    row = await calls.sub.row(message_id)
    assert (row["attempts"], row["processed_at"] is not None) == (1, True)


async def test_a_crash_after_the_handler_and_before_the_commit_leaves_no_effect_and_is_made_good(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    crashed: list[bool] = []

    def crash_once(target: Any) -> Any:
        if not crashed:
            crashed.append(True)
            sql = "SELECT pg_terminate_backend(pg_backend_pid())"
            return target.execute(text(sql) if hasattr(target, "get_bind") else sql)
        return None

    message_id = await calls.received()
    handler = calls.handler(kind(crash_once))
    assert await calls.process(handler).process(message_id) is not None
    assert (await calls.effects(), await calls.state(message_id)) == ([], "open")
    error = (await calls.sub.row(message_id))["last_error"]
    assert error.startswith(("AdminShutdown 57P01", "OperationalError"))
    await calls.again(message_id, handler)
    assert [effect["message_id"] for effect in await calls.effects()] == [message_id]
    assert await calls.state(message_id) == "processed"


async def test_a_lost_claim_rolls_the_effect_back_and_touches_nobody_elses_row(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    message_id = await calls.received()
    stolen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()

    def steal(_target: Any) -> Any:
        async def do() -> None:
            stolen.append(await calls.steal(message_id))

        if kind.__name__.startswith("async"):
            return do()
        return asyncio.run_coroutine_threadsafe(do(), loop).result(10)

    assert await calls.process(calls.handler(kind(steal))).process(message_id) is None
    assert await calls.effects() == []
    assert [await calls.sub.row(message_id)] == stolen
    assert await calls.sub.unacked() == 1
    assert not [fact for fact in calls.sub.facts if isinstance(fact, MessageProcessed)]


async def test_a_handler_cannot_commit_its_half_alone(calls: Handling, kind: Callable[..., Any]) -> None:
    """A session's commit is that of its savepoint; psycopg refuses."""

    def commit(target: Any) -> Any:
        done = target.commit()
        if asyncio.iscoroutine(done):

            async def fail() -> None:
                await done
                raise ValueError("after the commit")

            return fail()
        raise ValueError("after the commit")

    message_id = await calls.received()
    await calls.process(calls.handler(kind(commit))).process(message_id)
    assert (await calls.effects(), await calls.state(message_id)) == ([], "open")
    error = (await calls.sub.row(message_id))["last_error"]
    assert error.startswith("ValueError at " if "session" in kind.__name__ else "ProgrammingError at ")


async def test_the_connection_below_a_session_cannot_be_committed_either(calls: Handling) -> None:
    message_id = await calls.received()

    def commit_below(session: Session) -> None:
        session.connection().connection.driver_connection.commit()

    await calls.process(calls.handler(sync_session(commit_below))).process(message_id)
    assert (await calls.effects(), await calls.state(message_id)) == ([], "open")


async def test_a_session_that_is_rolled_back_keeps_nothing_and_the_message_is_processed(calls: Handling) -> None:
    message_id = await calls.received()
    await calls.process(calls.handler(sync_session(lambda session: session.rollback()))).process(message_id)
    assert (await calls.effects(), await calls.state(message_id)) == ([], "processed")


async def test_a_message_processed_once_is_not_handled_again(calls: Handling, kind: Callable[..., Any]) -> None:
    message_id = await calls.received()
    handler = calls.handler(kind(nothing))
    for _ in range(3):
        await calls.again(message_id, handler)
    assert len(await calls.effects()) == 1


async def test_connections_that_died_in_the_pool_cost_no_attempt(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    handler = calls.handler(kind(nothing))
    await calls.again(await calls.received(), handler)
    await calls.sub.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'handling'"
    )
    message_id = await calls.received()
    await calls.process(handler).process(message_id)
    assert ((await calls.sub.row(message_id))["attempts"], await calls.state(message_id)) == (1, "processed")


async def test_a_paused_handler_holds_its_locks_no_longer_than_its_time_out(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    found: list[Any] = []
    sql = "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')"

    def look(target: Any) -> Any:
        result = target.execute(text(sql) if hasattr(target, "get_bind") else sql)
        if not asyncio.iscoroutine(result):
            return found.append(tuple(result.fetchone()))

        async def read() -> None:
            rows = (await result).fetchone()
            found.append(tuple(await rows if asyncio.iscoroutine(rows) else rows))

        return read()

    await calls.process(calls.handler(kind(look), timeout=7)).process(await calls.received())
    assert found == [("7s", "6s")]


async def test_a_handler_that_writes_nothing_of_ours_is_settled_like_a_service(calls: Handling) -> None:
    seen: list[Any] = []

    def plain(event: IncomingEvent, context: MessageContext) -> None:
        seen.append((event, context))

    async def coroutine(event: IncomingEvent) -> None:
        seen.append(event.event_version)

    handler = calls.handler(plain, coroutine)
    message_id = await calls.received({"n": 1}, correlation_id=str(uuid4()), causation_id=str(uuid4()))
    second = await calls.received(version=2)
    for one in (message_id, second):
        await calls.process(handler).process(one)
        assert await calls.state(one) == "processed"
    event, context = seen[0]
    assert (event.payload, event.message_id) == ({"n": 1}, message_id)
    assert event.headers["Nats-Msg-Id"] == str(message_id)
    assert (context.message_id, context.attempt) == (message_id, 1)
    assert (context.correlation_id, context.causation_id) == (event.correlation_id, event.causation_id)
    assert seen[1] == 2


# --- what an exception leads to ---


class Mute(Exception):
    """Cannot even say what is wrong."""

    def __str__(self) -> str:
        raise NotImplementedError


class Archived(DomainError):
    """A rule of the application."""


def fail_validation() -> None:
    class Own(BaseModel):
        n: int

    Own.model_validate({"n": "s3cret"})


@pytest.mark.parametrize(
    ("error", "state", "says"),
    [
        (Poison("no title"), "dead", "Poison: no title"),
        (Archived("the vibe is archived"), "dead", "Archived: the vibe is archived"),
        (AlreadyProcessed("seen"), "processed", None),
        (KeyError("s3cret"), "open", "KeyError at {}.fail"),
        (RuntimeError(), "open", "RuntimeError at {}.fail"),
        (Mute("s3cret"), "open", "Mute at {}.fail"),
        (TimeoutError("s3cret"), "open", "TimeoutError at {}.fail"),
        (asyncio.CancelledError("s3cret"), "open", "CancelledError at {}.fail"),
        (StopIteration("s3cret"), "open", None),
        (SystemExit("s3cret"), "open", "SystemExit at {}.fail"),
        (InvalidCommand("s3cret", field="title"), "open", "InvalidCommand: invalid title"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_what_an_exception_leads_to(
    calls: Handling, kind: Callable[..., Any], error: BaseException, state: str, says: str | None
) -> None:
    def fail(_target: Any) -> Any:
        raise error

    message_id = await calls.received()
    await calls.process(calls.handler(kind(fail))).process(message_id)
    assert (await calls.effects(), await calls.state(message_id)) == ([], state)
    if says is not None:
        reason, stack = stack_of((await calls.sub.row(message_id))["last_error"])
        assert re.sub(r":\d+$", "", reason) == says.format(__name__)
        assert any(line.endswith(" in fail") for line in stack)
    assert "s3cret" not in str(await calls.sub.row(message_id))
    if state == "dead":
        [letter] = await calls.sub.dead_letters()
        reason, stack = stack_of(letter["reason"])
        kind_of = "poison" if isinstance(error, Poison) else "deterministic"
        assert (reason, letter["class"]) == (says, kind_of)
        assert any(line.endswith(" in fail") for line in stack)
    assert await calls.sub.unacked() == (1 if state == "open" else 0)


async def test_a_validation_error_of_the_handlers_own_is_tried_again(calls: Handling) -> None:
    with pytest.raises(ValidationError):
        fail_validation()
    message_id = await calls.received()
    await calls.process(calls.handler(sync_session(lambda _: fail_validation()))).process(message_id)
    assert await calls.state(message_id) == "open"
    error = (await calls.sub.row(message_id))["last_error"]
    assert error.startswith(f"ValidationError (int_parsing at n) at {__name__}.fail_validation:")


async def test_a_payload_that_does_not_fit_is_a_dead_letter_that_names_the_field(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    message_id = await calls.received({"title": 77_777})
    await calls.process(calls.handler(kind(nothing))).process(message_id)
    [letter] = await calls.sub.dead_letters()
    assert code_of(letter["reason"]) == "does_not_fit"
    assert letter["reason"].endswith(": string_type at payload.title")
    assert await calls.state(message_id) == "dead"


async def test_values_of_a_failed_statement_are_not_recorded(calls: Handling, kind: Callable[..., Any]) -> None:
    await calls.sub.query("CREATE TABLE once (word text UNIQUE)")
    await calls.sub.query("INSERT INTO once VALUES ('s3cret')")
    sql = "INSERT INTO once VALUES ('s3cret')"
    message_id = await calls.received()
    handler = kind(lambda target: target.execute(text(sql) if hasattr(target, "get_bind") else sql))
    await calls.process(calls.handler(handler)).process(message_id)
    reason, _ = stack_of((await calls.sub.row(message_id))["last_error"])
    assert re.fullmatch(r"UniqueViolation 23505 \(once_word_key\) at tests\.integration\.\S+:\d+", reason)
    assert "s3cret" not in str(await calls.sub.row(message_id))


async def test_what_an_exception_says_is_kept_where_a_subscription_asks_for_it(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    def fail(_target: Any) -> Any:
        raise ValueError("\x1b[31mno such title\nsecond line")

    message_id = await calls.received()
    command = calls.process(calls.handler(kind(fail)), error_text=True)
    await command.process(message_id)
    error = (await calls.sub.row(message_id))["last_error"]
    reason, stack = stack_of(error)
    assert reason.startswith(f"ValueError at {__name__}.fail:")
    assert reason.endswith(": \\x1b[31mno such title")
    assert stack[0].endswith(" in fail")


async def test_a_plain_function_that_returns_a_coroutine_is_not_taken_for_done(calls: Handling) -> None:
    async def inner() -> None: ...

    def handle(vibe: Vibe) -> Any:
        return inner()

    message_id = await calls.received()
    await calls.process(calls.handler(handle)).process(message_id)
    assert await calls.state(message_id) == "open"
    assert "declare it async def" in (await calls.sub.row(message_id))["last_error"]


async def test_an_upcaster_that_fails_is_tried_again_like_its_handler(calls: Handling) -> None:
    registry = HandlerRegistry("tests")
    registry.handles("vibe_created", version=2)(sync_session(nothing))
    registry.upcasts("vibe_created", from_version=1)(lambda payload: payload["no such key"])
    message_id = await calls.received()
    await calls.process(calls.handler(registry=registry)).process(message_id)
    assert (await calls.sub.row(message_id))["last_error"].startswith(f"KeyError at {__name__}.<lambda>:")


async def test_an_upcast_event_reaches_the_newest_handler(calls: Handling) -> None:
    registry, seen = HandlerRegistry("tests"), []

    def handle(vibe: Vibe, event: IncomingEvent) -> None:
        seen.append((vibe.title, event.event_version, event.payload))

    registry.handles("vibe_created", version=2)(handle)
    registry.upcasts("vibe_created", from_version=1)(lambda payload: {"title": payload["name"]})
    message_id = await calls.received({"name": "old"})
    await calls.process(calls.handler(registry=registry)).process(message_id)
    assert seen == [("old", 2, {"title": "old"})]


# --- an event without handler ---


@pytest.mark.parametrize(
    ("unknown", "state"), [("dead-letter", "dead"), ("skip", "processed"), ("retry", "open"), ("wait", "dead")]
)
async def test_an_event_without_handler(calls: Handling, unknown: Any, state: str) -> None:
    message_id = await calls.received(version=7)
    await calls.process(calls.handler(sync_session(nothing), unknown=unknown)).process(message_id)
    assert (await calls.state(message_id), await calls.effects()) == (state, [])
    if state != "processed":
        reason = "no handler for vibe_created v7: tests handles vibe_created v1"
        assert (await calls.sub.row(message_id))["last_error"] == reason


@pytest.mark.parametrize("knows", [True, False])
async def test_an_event_that_another_worker_knows_waits_without_an_attempt(calls: Handling, knows: bool) -> None:
    async def find(_names: object) -> bool:
        return knows

    waits = WaitForVersion(context="down", subscription="up", knows=find, longest=timedelta(days=1))
    message_id = await calls.received(version=7)
    handler = calls.handler(sync_session(nothing), unknown="wait")
    delay = await calls.process(handler, waits=waits).process(message_id)
    row = await calls.sub.row(message_id)
    assert (await calls.state(message_id), row["attempts"]) == (("open", 0) if knows else ("dead", 1))
    assert knows is (delay is not None)


# --- time-outs ---


async def test_a_coroutine_that_takes_too_long_is_stopped_and_undone(calls: Handling) -> None:
    message_id = await calls.received()
    handler = calls.handler(KINDS["async_session"](lambda _: asyncio.Event().wait()), timeout=0.3)
    await calls.process(handler).process(message_id)
    assert (await calls.effects(), await calls.state(message_id)) == ([], "open")
    assert (await calls.sub.row(message_id))["last_error"] == "time-out: no answer within 0.3 s"


@pytest.mark.parametrize("max_attempts", [1, 20])
@pytest.mark.parametrize("plain", ["sync_session", "sync_psycopg"])
async def test_a_function_that_takes_too_long_cannot_commit_later(
    calls: Handling, plain: str, max_attempts: int
) -> None:
    go_on, over = threading.Event(), threading.Event()

    def hang(_target: Any) -> None:
        go_on.wait(20)
        over.set()

    message_id = await calls.received()
    handler = calls.handler(KINDS[plain](hang), timeout=0.3, limit=_LONG)
    await calls.process(handler, max_attempts=max_attempts).process(message_id)
    before = await calls.sub.row(message_id)
    go_on.set()
    await asyncio.to_thread(over.wait, 20)
    # One more connection has asked what it was waiting for.
    await eventually("its transaction is over", lambda: handler.transactions.idle == 2)
    assert await calls.effects() == []
    assert await calls.sub.row(message_id) == before
    assert (before["processed_at"], before["dead_lettered_at"] is not None) == (None, max_attempts == 1)


async def test_a_late_function_cannot_settle_what_was_given_up_for_dead(calls: Handling) -> None:
    """Between the verdict and the stored dead letter the claim is still held."""
    message_id = await calls.received()
    claim = await calls.sub.inbox.claim(message_id, _LONG)
    assert claim is not None
    assert await calls.sub.inbox.reject(claim, DeadLetter("exhausted", DeadLetterClass.EXHAUSTED))
    assert not await calls.sub.inbox.mark_all_processed([claim])
    assert await calls.state(message_id) == "open"


async def test_a_function_that_hangs_has_its_thread_replaced_and_its_message_tried_again(
    calls: Handling,
) -> None:
    go_on, threads = threading.Event(), list[threading.Thread]()

    def hang(vibe: Vibe) -> None:
        threads.append(threading.current_thread())
        go_on.wait(20)

    one = calls.process(calls.handler(hang, timeout=0.3))
    assert isinstance(one, InThread)
    ids = [await calls.received(), await calls.received()]
    for id in ids:
        assert await one.process(id) is not None
        assert "time-out" in (await calls.sub.row(id))["last_error"]
    assert one.replaced == threads
    go_on.set()
    for id in ids:
        await calls.again(id, calls.handler(sync_session(nothing)))
        assert await calls.state(id) == "processed"


def noting(threads: list[int]) -> Callable[..., Any]:
    def note(vibe: Vibe) -> None:
        threads.append(threading.get_ident())

    return note


async def test_a_connection_that_was_closed_while_it_lay_idle_fails_no_message(
    calls: Handling, kind: Callable[..., Any]
) -> None:
    handler = calls.handler(kind(nothing))
    await calls.process(handler).process(await calls.received())
    ended = await calls.sub.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'handling'"
    )
    assert ended == [{"pg_terminate_backend": True}]
    message_id = await calls.received()
    assert await calls.process(handler).process(message_id) is None
    assert (await calls.state(message_id), (await calls.sub.row(message_id))["attempts"]) == ("processed", 1)


# --- the chain of events ---


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("coroutine", [True, False])
async def test_events_of_a_handler_carry_the_chain_and_commit_with_it(
    calls: Handling, correlated: bool, coroutine: bool
) -> None:
    following = Event(event_type="vibe_counted", aggregate_type="vibe", aggregate_id="v1", payload={})

    def add(vibe: Vibe, session: Session) -> None:
        OUTBOX.add(session, following)

    async def add_async(vibe: Vibe, session: AsyncSession) -> None:
        await OUTBOX.add(session, following)

    correlation = uuid4() if correlated else None
    message_id = await calls.received(correlation_id=correlation and str(correlation))
    await calls.process(calls.handler(add_async if coroutine else add)).process(message_id)
    [row] = await calls.sub.query("SELECT correlation_id, causation_id FROM outbox_events")
    assert row == {"correlation_id": correlation or message_id, "causation_id": message_id}
    assert await calls.state(message_id) == "processed"
    assert RequestContext.current() == RequestContext()


async def test_events_of_a_handler_that_fails_are_not_published(calls: Handling) -> None:
    following = Event(event_type="vibe_counted", aggregate_type="vibe", aggregate_id="v1", payload={})

    def add(vibe: Vibe, session: Session) -> None:
        OUTBOX.add(session, following)
        session.commit()
        raise ValueError("no")

    message_id: UUID = await calls.received()
    await calls.process(calls.handler(add)).process(message_id)
    assert await calls.sub.query("SELECT 1 FROM outbox_events") == []


# --- the documentation ---


async def test_the_example_of_the_documentation_runs(calls: Handling, monkeypatch: pytest.MonkeyPatch) -> None:
    example = types.ModuleType("myapp_of_the_guide")
    monkeypatch.setitem(sys.modules, example.__name__, example)
    exec(code("docs/how-to/python-handlers.md", "python", 1), example.__dict__)
    await calls.sub.query("CREATE TABLE vibe_index (title text)")
    handler = calls.handler(registry=load(example.__name__))
    old = await calls.received({"title": "Hello"})
    blank = await calls.received({"title": " ", "tags": []}, version=2)
    for message_id in (old, blank):
        await calls.process(handler).process(message_id)
    assert [await calls.state(message_id) for message_id in (old, blank)] == ["processed", "dead"]
    assert await calls.sub.query("SELECT title FROM vibe_index") == [{"title": "Hello"}]
    assert await calls.sub.query("SELECT event_type, causation_id FROM outbox_events") == [
        {"event_type": "vibe_indexed", "causation_id": old}
    ]


# --- conflicts with other transactions ---


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.parametrize("name", KINDS)
async def test_a_lost_conflict_costs_no_attempt(calls: Handling, name: str, code: str) -> None:
    left = [text(CONFLICT.format(code)) if name.endswith("session") else CONFLICT.format(code)] * 2
    handler = calls.handler(KINDS[name](lambda given: given.execute(left.pop()) if left else None))
    id = await calls.received()
    assert await calls.process(handler).process(id) is None
    assert [effect["message_id"] for effect in await calls.effects()] == [id]
    row = await calls.sub.row(id)
    assert (row["attempts"], row["last_error"]) == (1, None)


async def test_a_conflict_that_does_not_end_is_a_failed_attempt(calls: Handling) -> None:
    lose = text(CONFLICT.format("40001"))
    id = await calls.received()
    assert await calls.process(calls.handler(sync_session(lambda given: given.execute(lose)))).process(id)
    assert await calls.effects() == []
