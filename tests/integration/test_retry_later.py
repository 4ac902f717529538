"""The handler says when: Retry-After, RetryLater and retry policies, by every runner, on real servers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from uuid import UUID

import pytest

from consumer.functions import PythonEventHandler
from consumer.handlers import Dead, HandlerRegistry, Never, RetryLater
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.devstack import NatsServer
from relay.domain.facts import MessageRetried
from relay.domain.reasons import code_of
from tests.integration.consuming import Subscription, subscribed
from tests.integration.http_service import answering, calling
from tests.integration.python_handling import KINDS, Handling, Vibe, handling
from tests.pages import code

pytestmark = pytest.mark.anyio

#: What chance may add to a wait, as a factor.
JITTER = 1.2


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


@pytest.fixture
async def calls(sub: Subscription) -> AsyncIterator[Handling]:
    async with handling(sub) as calls:
        yield calls


async def wait_of(sub: Subscription, message_id: UUID) -> float:
    """In how many seconds a message is due, by the database's clock."""
    [row] = await sub.query(
        "SELECT extract(epoch FROM next_attempt_at - now())::float AS wait FROM inbox_messages"
        " WHERE message_id = %s",
        message_id,
    )
    return float(row["wait"])


async def age(sub: Subscription, message_id: UUID, interval: str) -> None:
    """Let a message have been received so long ago."""
    await sub.query(
        "UPDATE inbox_messages SET received_at = now() - %s::interval WHERE message_id = %s", interval, message_id
    )


async def run(calls: Handling, how: str, handler: PythonEventHandler, message_id: UUID, **parts: Any) -> None:
    """Make one attempt, as a worker does: in a thread or on the loop by the function's kind, or in a chunk."""
    if how == "chunk":
        later = await calls.sub.chunk(handler, **parts).run([message_id])
        if message_id not in later or later[message_id]:
            return
    calls.ahead = how == "ahead"
    await calls.process(handler, **parts).process(message_id)


# --- Retry-After ---


def in_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


#: The headers, a number standing for a date so many seconds from now; and the wait.
HEADERS: list[tuple[Sequence[str | int], float | None]] = [
    (["20"], 20),
    (["120"], 120),
    ([120], 118),
    (["9" * 30], 3600),
    ([10**7], 3600),
    (["5", "40"], 40),
    (["soon", "40"], 40),
    (["soon"], None),
    (["-20"], None),
    (["0"], None),
    ([-600], None),
    ([], None),
]


@pytest.mark.parametrize("status", [429, 503, 500, 404])
@pytest.mark.parametrize(("headers", "seconds"), HEADERS)
async def test_a_service_says_when_it_is_called_again(
    sub: Subscription, status: int, headers: Sequence[str | int], seconds: float | None
) -> None:
    message_id = await sub.received()
    texts = [in_date(header) if isinstance(header, int) else header for header in headers]
    answer = answering(f"{status} No", b"", *(f"Retry-After: {text}" for text in texts))
    async with calling(answer) as (handler, _):
        delay = await sub.process(handler, longest=timedelta(hours=1)).process(message_id)
    row = await sub.row(message_id)
    asked = status in {429, 503} and seconds is not None
    least = seconds if asked and seconds is not None else 8.0
    assert delay is not None
    assert least <= delay.total_seconds() <= (min(least * JITTER, 3600) if asked else 10)
    assert least - 5 <= await wait_of(sub, message_id) <= delay.total_seconds()
    assert (row["attempts"], code_of(row["last_error"])) == (0 if asked else 1, f"status_{status}")


async def test_a_message_that_is_put_off_for_ever_ends_as_a_dead_letter(sub: Subscription) -> None:
    message_id = await sub.received()
    async with calling(answering("503 No", b"", "Retry-After: 20")) as (handler, _):
        process = sub.process(handler, max_attempts=2)
        for attempts in (0, 0, 1, 2):
            if attempts == 1:
                await age(sub, message_id, "25 hours")
            await sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
            await process.process(message_id)
            assert (await sub.row(message_id))["attempts"] == attempts
    assert (await sub.row(message_id))["dead_letter_class"] == "exhausted"
    assert len(await sub.dead_letters()) == 1


# --- RetryLater ---


def asking(delay: Any, runs: list[int] | None = None) -> Callable[[Any], None]:
    def then(_target: Any) -> None:
        if runs is not None:
            runs.append(1)
        raise RetryLater("the bank is closed", delay=delay)

    return then


def plain(then: Callable[[Any], Any]) -> Callable[..., Any]:
    def handle(vibe: Vibe) -> None:
        then(None)

    return handle


def awaited(then: Callable[[Any], Any]) -> Callable[..., Any]:
    async def handle(vibe: Vibe) -> None:
        then(None)

    return handle


FUNCTIONS = {**KINDS, "plain": plain, "awaited": awaited}
RUNNERS = [(how, kind) for how in ("alone", "chunk") for kind in FUNCTIONS] + [
    ("ahead", kind) for kind in ("sync_session", "sync_psycopg", "plain")
]


@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_a_function_says_when_it_is_called_again(calls: Handling, how: str, kind: str) -> None:
    message_id = await calls.received()
    handler = calls.handler(FUNCTIONS[kind](asking(timedelta(seconds=90))))
    for _ in range(3):
        await calls.sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
        await run(calls, how, handler, message_id, max_attempts=2)
        row = await calls.sub.row(message_id)
        assert 85 <= await wait_of(calls.sub, message_id) <= 90 * JITTER
        assert (row["attempts"], row["last_error"].partition(" <- ")[0]) == (0, "RetryLater: the bank is closed")
        assert (await calls.effects(), await calls.state(message_id)) == ([], "open")
    assert [fact.delay_seconds >= 90 for fact in calls.sub.facts if isinstance(fact, MessageRetried)] == [True] * 3


@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_when_it_is_too_old_its_attempts_are_spent(calls: Handling, how: str, kind: str) -> None:
    message_id = await calls.received()
    await age(calls.sub, message_id, "2 days")
    handler = calls.handler(FUNCTIONS[kind](asking(90)))
    for state in ("open", "dead"):
        await calls.sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
        await run(calls, how, handler, message_id, max_attempts=2)
        assert await calls.state(message_id) == state


@pytest.mark.parametrize(
    ("delay", "wait"), [(0.001, 1), (0, 1), (-5, 1), (10**9, 3600), (timedelta.max, 3600), (float("inf"), 3600)]
)
async def test_a_wait_has_bounds(calls: Handling, delay: Any, wait: float) -> None:
    message_id = await calls.received()
    process = calls.process(calls.handler(plain(asking(delay))), longest=timedelta(hours=1))
    found = await process.process(message_id)
    assert found is not None
    assert wait <= found.total_seconds() <= min(wait * JITTER, 3600)


async def test_what_is_no_delay_is_told_where_it_was_raised_and_counts(calls: Handling) -> None:
    message_id = await calls.received()
    await calls.process(calls.handler(plain(asking("soon")))).process(message_id)
    row = await calls.sub.row(message_id)
    assert row["attempts"] == 1
    assert row["last_error"].startswith("InvalidRetry: ")
    assert "soon" not in row["last_error"]


@pytest.mark.parametrize("kind", ["sync_session", "async_psycopg"])
async def test_of_a_chunk_only_the_one_that_asks_is_put_off(calls: Handling, kind: str) -> None:
    ids = [await calls.received() for _ in range(5)]

    seen: list[UUID] = []

    def then(_target: Any) -> None:
        seen.append(ids[len(seen)])
        if seen[-1] == ids[2]:
            raise RetryLater(delay=90)

    later = await calls.sub.chunk(calls.handler(KINDS[kind](then))).run(ids)
    assert list(later) == [ids[2]]
    assert later[ids[2]].total_seconds() >= 90
    assert [await calls.state(id) for id in ids] == [*["processed"] * 2, "open", *["processed"] * 2]
    assert {effect["message_id"] for effect in await calls.effects()} == {*ids} - {ids[2]}
    assert len({effect["xid"] for effect in await calls.effects()}) == 1
    assert (await calls.sub.row(ids[2]))["attempts"] == 0


async def test_a_head_that_waits_holds_its_key(calls: Handling) -> None:
    calls.sub.keep_order()
    order: list[str] = []

    def handle(vibe: Vibe) -> None:
        order.append(vibe.title)
        if order == ["first"]:
            raise RetryLater(delay=90)

    handler = calls.handler(handle)
    ids = []
    for title, key in (("first", "k"), ("second", "k"), ("other", "j")):
        body = {"event_type": "vibe_created", "event_version": 1, "payload": {"title": title}}
        ids.append(await calls.sub.received(body=json.dumps(body).encode(), Relay_Partition_Key=key))
    first, second, other = ids
    for id in (first, second, other):
        await calls.process(handler).process(id)
    assert order == ["first", "other"]
    await calls.sub.query("UPDATE inbox_messages SET next_attempt_at = NULL WHERE message_id = %s", first)
    for id in (second, first, second):
        await calls.process(handler).process(id)
    assert order == ["first", "other", "first", "second"]


async def test_jetstream_is_told_the_same_delay(calls: Handling) -> None:
    told: list[timedelta] = []

    class Noting(NatsJetStreamConsumer):
        async def nak(self, replies: Sequence[str], delay: timedelta) -> None:
            told.append(delay)
            await super().nak(replies, delay)

    consumer = Noting(calls.sub.nats, stream=calls.sub.stream, durable="down")
    found = []
    for function in (plain(asking(90)), awaited(asking(90))):
        message_id = await calls.received()
        found.append(await calls.process(calls.handler(function), nak=True, consumer=consumer).process(message_id))
    message_id = await calls.received()
    chunk = calls.sub.chunk(calls.handler(plain(asking(90))), nak=True, consumer=consumer)
    found.append((await chunk.run([message_id]))[message_id])
    assert told == found
    assert all(delay >= timedelta(seconds=90) for delay in told)


# --- retry= ---


class Refused(Exception):
    """What the functions below raise."""


def failing(_target: Any) -> None:
    raise Refused("secret")


def with_policy(function: Callable[..., Any], policy: Any) -> dict[str, Any]:
    registry = HandlerRegistry("tests")
    registry.handles("vibe_created", retry=policy)(function)
    return {"registry": registry}


@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_a_policy_says_when_a_message_is_tried_again_and_that_counts(
    calls: Handling, how: str, kind: str
) -> None:
    asked: list[tuple[str, int]] = []

    def policy(error: Exception, attempt: int) -> float:
        asked.append((type(error).__name__, attempt))
        return 40.0 * attempt

    message_id = await calls.received()
    handler = calls.handler(**with_policy(FUNCTIONS[kind](failing), policy))
    for attempt in (1, 2):
        await calls.sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
        await run(calls, how, handler, message_id, max_attempts=3)
        assert 40 * attempt - 5 <= await wait_of(calls.sub, message_id) <= 40 * attempt
        assert (await calls.sub.row(message_id))["attempts"] == attempt
    await calls.sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
    await run(calls, how, handler, message_id, max_attempts=3)
    assert await calls.state(message_id) == "dead"
    assert asked == [("Refused", 1), ("Refused", 2), ("Refused", 3)]


@pytest.mark.parametrize(("says", "kind_of_death"), [(Never, "deterministic"), (Dead, "exhausted")])
@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_a_policy_ends_a_message(
    calls: Handling, how: str, kind: str, says: object, kind_of_death: str
) -> None:
    message_id = await calls.received()
    handler = calls.handler(**with_policy(FUNCTIONS[kind](failing), lambda _error, _attempt: says))
    await run(calls, how, handler, message_id)
    row = await calls.sub.row(message_id)
    assert (await calls.state(message_id), row["dead_letter_class"]) == ("dead", kind_of_death)
    assert (code_of(row["dead_letter_reason"]), await calls.effects()) == ("raised_Refused", [])


@pytest.mark.parametrize("says", [None, -1, float("nan"), 1e300, "5", KeyError("secret")])
@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_a_bad_policy_harms_no_message(calls: Handling, how: str, kind: str, says: object) -> None:
    def policy(_error: Exception, _attempt: int) -> Any:
        if isinstance(says, Exception):
            raise says
        return says

    message_id = await calls.received()
    await run(calls, how, calls.handler(**with_policy(FUNCTIONS[kind](failing), policy)), message_id)
    row = await calls.sub.row(message_id)
    assert (row["attempts"], await calls.state(message_id)) == (1, "open")
    assert 3 <= await wait_of(calls.sub, message_id) <= 10, "the usual back-off"
    assert "INVALID_RETRY" in row["last_error"]
    assert "secret" not in row["last_error"]


HANGING = [("chunk", kind) for kind in ("sync_session", "async_session", "plain", "awaited")] + [
    *[("alone", kind) for kind in ("sync_session", "async_session", "plain", "awaited")],
    ("ahead", "sync_session"),
]


@pytest.mark.parametrize(("how", "kind"), HANGING)
async def test_a_policy_is_asked_about_a_time_out_too(calls: Handling, how: str, kind: str) -> None:
    end, asked, threads = threading.Event(), list[str](), list[threading.Thread]()

    def hang(_target: Any) -> Any:
        threads.append(threading.current_thread())
        return asyncio.sleep(60) if kind == "async_session" else end.wait(60)

    async def forever(vibe: Vibe) -> None:
        await asyncio.sleep(60)

    def policy(error: Exception, _attempt: int) -> float:
        asked.append(type(error).__name__)
        return 300.0

    function = forever if kind == "awaited" else FUNCTIONS[kind](hang)
    handler = calls.handler(timeout=0.3, limit=timedelta(seconds=30), **with_policy(function, policy))
    message_id = await calls.received()
    try:
        await run(calls, how, handler, message_id)
        assert asked == ["TimeoutError"]
        assert 290 <= await wait_of(calls.sub, message_id) <= 300
    finally:
        end.set()
        if how != "chunk" and not handler.registry.handlers["vibe_created", 1].signature.is_async:
            await asyncio.to_thread(threads[0].join, 60)


def test_the_policy_of_the_page_says_what_the_page_says() -> None:
    page: dict[str, Any] = {}
    exec(code("docs/how-to/python-handlers.md", "python", 2), page)
    policy = page["policy"]
    assert [policy(PermissionError(), 1), policy(KeyError(), 4), policy(KeyError(), 3)] == [Never, Dead, 30.0]
