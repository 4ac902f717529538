"""What is kept of each attempt: by whom, when, for how long, and why it failed; nothing of a success at once."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.adapters.postgres.inbox_operations import PostgresMessageOperations
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.row_operations import PostgresTaskOperations
from relay.devstack import NatsServer
from relay.domain.attempts import KEPT
from relay.domain.claim_tokens import read_token
from relay.domain.model import HandlerResult
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.integration.publishing import query
from tests.integration.tasking import Mail, Tasks, tasking

pytestmark = pytest.mark.anyio
LOG = "SELECT attempt_log FROM inbox_messages"


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


async def due_now(sub: Subscription) -> None:
    past = "now() - interval '1 second'"
    await sub.query(f"UPDATE inbox_messages SET next_attempt_at = {past}, claimed_until = {past}")


async def attempts_of(sub: Subscription, id: Any) -> Sequence[dict[str, Any]]:
    row = await PostgresMessageOperations(sub.pool.connection).get(str(id))
    assert row is not None
    found: Sequence[dict[str, Any]] = row["attempt_log"]
    return found


async def answered(sub: Subscription, id: Any, *answers: HandlerResult) -> None:
    for answer in answers:
        await due_now(sub)
        await sub.process(Handler(lambda _request, answer=answer: answer)).process(id)  # type: ignore[misc]


BAD, GOOD = HandlerResult.from_status(503, "busy"), HandlerResult.from_status(200)


async def test_a_success_at_once_writes_nothing_and_is_still_an_attempt(sub: Subscription) -> None:
    id = await sub.received()
    await answered(sub, id, GOOD)
    assert query(sub.url, LOG) == [{"attempt_log": None}]
    [only] = await attempts_of(sub, id)
    assert (only["number"], only["outcome"], only["ended"]) == (
        1,
        "processed",
        (await sub.row(id))["processed_at"],
    )


async def test_each_attempt_says_who_when_how_long_and_why(sub: Subscription) -> None:
    id, before = await sub.received(), datetime.now(UTC) - timedelta(minutes=1)
    await answered(sub, id, BAD, BAD, GOOD)
    first, second, third = await attempts_of(sub, id)
    assert [(it["number"], it["outcome"]) for it in (first, second, third)] == [
        (1, "failed"),
        (2, "failed"),
        (3, "processed"),
    ]
    for it in (first, second):
        assert it["error"] == "HTTP 503: busy"
        assert it["worker"].endswith(f":{os.getpid()}")
        assert before < it["began"] <= it["ended"] < it["next_at"]
        assert it["release"]
        assert 0 <= it["seconds"] < 60
    # The claim's token says since when the row was held.
    assert before < third["began"] <= third["ended"]
    row = await sub.row(id)
    assert (row["processed_at"] is not None, row["attempts"]) == (True, 3)


async def test_a_verdict_of_death_is_the_last_attempt(sub: Subscription) -> None:
    id = await sub.received()
    await answered(sub, id, BAD, HandlerResult.from_status(422, "no address"))
    assert [(it["outcome"], it["error"]) for it in await attempts_of(sub, id)] == [
        ("failed", "HTTP 503: busy"),
        ("dead", "HTTP 422: no address"),
    ]


async def test_an_attempt_whose_worker_died_is_told_as_lost(sub: Subscription) -> None:
    id = await sub.received()
    await answered(sub, id, BAD)
    await sub.query("UPDATE inbox_messages SET attempts = attempts + 1")
    await answered(sub, id, BAD)
    assert [it["outcome"] for it in await attempts_of(sub, id)] == ["failed", "lost", "failed"]


async def test_only_the_last_attempts_are_kept_and_their_text_is_bounded(sub: Subscription) -> None:
    id = await sub.received()
    long = HandlerResult.failed("x" * 5_000)
    await sub.query("UPDATE inbox_messages SET attempts = 0")
    for _ in range(KEPT + 3):
        await answered(sub, id, long)
        await sub.query("UPDATE inbox_messages SET attempts = 5")
    [log] = [row["attempt_log"] for row in query(sub.url, LOG)]
    assert len(log) == KEPT
    assert len(json.dumps(log)) < KEPT * 1_500


@pytest.mark.parametrize("written", ["{}", "3", '"text"', '[1, null, {"n": "x"}, {"n": 1, "at": 7, "stack": 1}]'])
async def test_whatever_else_is_written_there_neither_stops_a_row_nor_its_page(
    sub: Subscription, written: str
) -> None:
    id = await sub.received()
    query(sub.url, "UPDATE inbox_messages SET attempt_log = %s RETURNING 1", written)
    await attempts_of(sub, id)
    await answered(sub, id, BAD, GOOD)
    assert [it["outcome"] for it in await attempts_of(sub, id)][-2:] == ["failed", "processed"]


async def test_the_claim_of_a_running_row_says_since_when(sub: Subscription) -> None:
    id = await sub.received()
    seen: list[Any] = []

    def look(_request: Any) -> HandlerResult:
        seen.extend(row["claim_token"] for row in query(sub.url, "SELECT claim_token FROM inbox_messages"))
        return GOOD

    await due_now(sub)
    await sub.process(Handler(look)).process(id)
    [token] = seen
    claimed = read_token(token)
    assert claimed is not None
    assert abs(claimed.at - datetime.now(UTC)) < timedelta(minutes=5)


# --- tasks ---


@pytest.fixture(params=["in the worker's thread", "on the loop"])
async def tasks(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.threads = "thread" in request.param
        yield tasks


async def test_a_task_keeps_its_attempts_with_the_lines_of_the_application(tasks: Tasks) -> None:
    failing = [True]

    def function(mail: Mail) -> None:
        if failing[0]:
            raise KeyError("iban")

    tasks.register(function)
    [id] = tasks.schedule(Mail(n=1))
    await tasks.run(id)
    failing[0] = False
    await tasks.make_due(id)
    await tasks.run(id)
    pool = Pool(tasks.url, max_size=2, application_name="operator")
    await pool.open()
    try:
        row = await PostgresTaskOperations(pool.connection).get(id)
    finally:
        await pool.close()
    assert row is not None
    first, second = row["attempt_log"]
    assert (first["outcome"], second["outcome"]) == ("failed", "completed")
    assert "KeyError" in first["error"]
    assert any("test_attempts.py" in line for line in first["stack"])
