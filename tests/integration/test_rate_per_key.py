"""A rate of each key: a key beyond it waits without an attempt and in its order, and the other keys go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.controls import KnownControls, PostgresControls
from relay.adapters.postgres.limited_inbox import LimitedInbox
from relay.adapters.postgres.pool import Pool
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.controls import NO_LIMIT, Limit, What
from relay.domain.errors import InvalidRequest
from relay.domain.tasks import InvalidTask
from tasks import task
from tasks.registry import TaskRegistry
from tests.integration.console_pages import Browser
from tests.integration.consuming import LEASE, SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.ops_api import configured, serving
from tests.integration.tasking import Mail, tasking
from tests.integration.test_cli_operating import SEA, Shell
from tests.integration.test_limits_at_run_time import ANN, AT_ONCE, HOUR, controls_of, handle

pytestmark = pytest.mark.anyio
KEYS = "SELECT count(*) AS n FROM task_rates WHERE type <> 'subscription from_upstream'"


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as found:
        yield found


async def limit(sub: Subscription, interval: timedelta = HOUR, **values: Any) -> None:
    by_key = Limit(interval=interval, per_key=True, **values)
    await controls_of(sub).limit(What.SUBSCRIPTION, sub.subscription, by_key, None, ANN)


async def came(sub: Subscription, keys: str) -> list[UUID]:
    """A message of each key; a dot stands for none."""
    named = [{} if key == "." else {"Relay_Partition_Key": key} for key in keys]
    sent = [await sub.send(**headers) for headers in named]
    await sub.pull().accept(await sub.fetch())
    return sent


async def begun(sub: Subscription, ids: list[UUID]) -> list[UUID]:
    """Those that begin, if each has its turn once in a process of its own."""
    handler = Handler()
    for id in ids:
        await handle(sub, handler, id)
    return [it.message_id for it in handler.requests]


async def let_pass(sub: Subscription) -> None:
    """Let the time pass until the next slot of each key."""
    past = ", ".join(f"{name} = {name} - interval '1 hour'" for name in ("free_at", "promised_until"))
    await sub.query(f"UPDATE task_rates SET {past}")
    await sub.query(
        "UPDATE inbox_messages SET next_attempt_at = now(), enqueued_at = now()"
        " WHERE processed_at IS NULL AND next_attempt_at < 'infinity'"
    )


@pytest.mark.parametrize(
    ("keys", "first"),
    [("aab", [0, 2]), ("abab", [0, 1]), ("aaaa", [0]), ("abcd", [0, 1, 2, 3]), ("..a", [0, 2]), ("a.a.", [0, 1])],
)
async def test_one_of_each_key_begins_and_the_others_spend_no_attempt(
    sub: Subscription, keys: str, first: list[int]
) -> None:
    """Those without a key share one rate."""
    ids = await came(sub, keys)
    await limit(sub)
    assert await begun(sub, ids) == [ids[n] for n in first]
    rows = [await sub.row(id) for id in ids]
    assert [row["attempts"] for row in rows] == [int(n in first) for n in range(len(ids))]
    assert [row["last_error"] for row in rows] == [None] * len(ids)
    assert await sub.inbox.overdue(sub.subscription, 10, at_once=True) == [], "no sweep brings them before"
    await let_pass(sub)
    rest = [id for id in ids if id not in {ids[n] for n in first}]
    seen = dict.fromkeys(keys[n] for n in range(len(ids)) if n not in first)
    assert len(await begun(sub, rest)) == len(seen), "one more of each key that waits"


@pytest.mark.parametrize("failed_head", ["block", "skip", "park"])
async def test_an_ordered_key_keeps_its_order_and_holds_up_no_other(sub: Subscription, failed_head: Any) -> None:
    sub.keep_order(failed_head)
    ids = await came(sub, "aaab")
    await limit(sub)
    # However the queue turns them, the head waits for its slot and nothing overtakes it.
    assert await begun(sub, [*reversed(ids), *ids]) == [ids[3], ids[0]]
    for n in (1, 2):
        assert await begun(sub, [*reversed(ids)]) == []
        await let_pass(sub)
        assert await begun(sub, [*reversed(ids)]) == [ids[n]]


async def test_a_key_beyond_its_rate_fills_no_window(sub: Subscription) -> None:
    ids = await came(sub, "aaaaab")
    await limit(sub)
    assert await begun(sub, ids) == [ids[0], ids[5]]
    assert await sub.inbox.due(sub.subscription, 10) == 0, "others are fetched"
    assert len(await sub.inbox.let_go(sub.subscription, 0, 10)) == 4


async def test_in_an_ordered_subscription_those_behind_it_fill_none_either(sub: Subscription) -> None:
    sub.keep_order()
    ids = await came(sub, "aaaa")
    await limit(sub)
    assert await begun(sub, ids[:1]) == ids[:1]
    assert await begun(sub, ids[1:2]) == []
    assert await sub.inbox.due(sub.subscription, 2) == 0
    assert len(await sub.inbox.let_go(sub.subscription, 0, 10)) == 3


async def test_it_holds_for_the_whole_fleet_at_once(sub: Subscription) -> None:
    ids = await came(sub, "ab" * 8)
    await limit(sub)
    handler = Handler()
    await asyncio.gather(*(handle(sub, handler, id) for id in ids for _ in range(2)))
    assert {ids.index(it.message_id) % 2 for it in handler.requests} == {0, 1}
    assert len(handler.requests) == 2


async def test_concurrency_holds_beside_it(sub: Subscription) -> None:
    first, second = await came(sub, "ab")
    await limit(sub, concurrency=1)
    limited = LimitedInbox(sub.pool, sub.inbox, sub.subscription)
    both = Limit(interval=HOUR, per_key=True, concurrency=1)
    assert await limited.claim(first, LEASE, 20, both) is not None
    put_off: Any = await limited.claim(second, LEASE, 20, both)
    assert put_off.waits_for == "room"


@pytest.mark.parametrize(
    "after", [NO_LIMIT, Limit(interval=HOUR), Limit(interval=timedelta(hours=2), per_key=True)]
)
async def test_a_change_of_the_limit_lets_all_be_tried_again(sub: Subscription, after: Limit) -> None:
    ids = await came(sub, "aaab")
    await limit(sub)
    assert await begun(sub, ids) == [ids[0], ids[3]]
    assert (await sub.query(KEYS))[0]["n"] == 2
    failed = (await came(sub, "c"))[0]
    await sub.process(Handler.answering(500)).process(failed)
    before = await controls_of(sub).limit(What.SUBSCRIPTION, SUBSCRIPTION, after, None, ANN)
    assert str(before) == "1/1h per key"
    assert (await sub.query(KEYS))[0]["n"] == 0, "slots of keys are forgotten"
    assert {*await sub.inbox.overdue(sub.subscription, 10, at_once=True)} == {*ids[1:3]}
    assert (await sub.row(failed))["next_attempt_at"] is not None, "what has failed stays in its back-off"
    assert await begun(sub, ids[1:3]) == (ids[1:3] if not after else ids[1:2])


async def test_a_long_queue_of_a_key_does_not_ask_all_at_once_for_each_slot(sub: Subscription) -> None:
    """Beyond 15 minutes each looks again: at a time of its own, and not for the next free slot with all others."""
    ids = await came(sub, "a" * 40)
    await limit(sub, timedelta(minutes=1))
    assert await begun(sub, ids) == ids[:1]
    later = "FROM inbox_messages WHERE processed_at IS NULL AND next_attempt_at <= now() + interval '%s minutes'"
    for minutes in (1, 5, 10):
        [due] = await sub.query(f"SELECT count(*) AS n {later % minutes}")
        assert due["n"] <= minutes + 1
    due_now = "UPDATE inbox_messages SET next_attempt_at = now(), enqueued_at = now() WHERE processed_at IS NULL"
    await sub.query(due_now)
    assert await begun(sub, ids[1:]) == []
    [soon] = await sub.query(f"SELECT count(*) AS n {later % 2}")
    assert soon["n"] < 30
    await sub.query("UPDATE task_rates SET free_at = now()")
    await sub.query(due_now)
    assert len(await begun(sub, ids[1:])) == 1, "a free slot is taken by whoever looks first"


async def test_undo_brings_the_rate_of_keys_back(sub: Subscription) -> None:
    await limit(sub)
    controls = controls_of(sub)
    await controls.limit(What.SUBSCRIPTION, SUBSCRIPTION, Limit(concurrency=3), None, ANN)
    assert str(await controls.restore(What.SUBSCRIPTION, SUBSCRIPTION, ANN)) == "1/1h per key"
    [now] = await controls.in_force()
    assert now.limit == Limit(interval=HOUR, per_key=True)


async def test_of_a_million_keys_only_those_of_the_last_interval_have_rows(sub: Subscription) -> None:
    over = """
        INSERT INTO task_rates (type, free_at, promised_until)
        SELECT 'subscription from_upstream' || E'\\n' || n, now() - interval '1 s', now() - interval '1 s'
        FROM generate_series(1, 1000) AS n"""
    await sub.query(over)
    await limit(sub)
    assert (await sub.query(KEYS))[0]["n"] == 0
    await sub.query(over)
    ids = await came(sub, "abcdefghij")
    assert await begun(sub, ids) == ids
    assert (await sub.query(KEYS))[0]["n"] == 1000 + 10 - 30, "each start adds one, and forgets three"
    age = "greatest(free_at, promised_until)"
    over = f"strpos(type, E'\\n') > 0 AND {age} < clock_timestamp()"
    plan = await sub.query(f"EXPLAIN SELECT type FROM task_rates WHERE {over} ORDER BY {age} LIMIT 3")
    assert "idx_task_rates_keys" in str(plan)


async def test_without_a_limit_no_row_of_a_rate_is_written(sub: Subscription) -> None:
    ids = await came(sub, "aab")
    assert await begun(sub, ids) == ids
    assert await sub.query("SELECT * FROM task_rates") == []


async def test_what_waits_for_the_turn_of_its_key_does_not_count_as_failing(sub: Subscription) -> None:
    ids = await came(sub, "aaa")
    await limit(sub)
    await begun(sub, ids)
    [found] = (await PostgresBacklogReader(sub.pool.connection).backlogs()).inbox
    assert (found.count, found.failing) == (2, 0)


# --- tasks ---


@pytest.mark.parametrize("declared", [True, False])
async def test_a_type_of_tasks_has_a_rate_of_each_key(database_url: str, declared: bool) -> None:
    """As declared, or set at run time: by the concurrency key."""
    async with tasking(database_url) as mail, Pool(database_url, max_size=2, application_name="operator") as pool:
        ran: list[int] = []

        def send(payload: Mail) -> None:
            ran.append(payload.n)

        rate: dict[str, Any] = {"rate_limit": "1/1h", "rate_per_key": True} if declared else {"concurrency": 10}
        mail.register(send, concurrency_key=lambda it: it.n % 2, **rate)
        if not declared:
            mail.rows.controls = KnownControls(pool.connection, fresh=AT_ONCE)
            by_key = Limit(interval=HOUR, per_key=True)
            await PostgresControls(pool.connection).limit(What.TASK_TYPE, "mail", by_key, None, ANN)
        for id in (ids := mail.schedule(*(Mail(n=n) for n in range(4)))):
            await mail.run(id)
        assert ran == [0, 1]
        rows = [await mail.row(id) for id in ids]
        assert [(row["attempts"], row["waits_for"]) for row in rows] == [(1, None)] * 2 + [(0, "turn")] * 2


@pytest.mark.parametrize("rate", [{}, {"rate_limit": "1/2d"}])
def test_a_rate_of_keys_needs_a_rate_that_ends(rate: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="needs a rate"):
        task("mail", rate_per_key=True, into=TaskRegistry(), **rate)


# --- the faces ---


async def test_the_faces_set_it_and_say_it(
    tmp_path: Path, database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    shell = Shell(tmp_path, database_url)
    shell("subscriptions", "limit", SUBSCRIPTION, "--rate", "10/1m", "--per-key", *SEA)
    assert "10/1m per key" in shell("controls", "list", *SEA)
    for wrong in (("--per-key",), ("--concurrency", "3", "--per-key"), ("--rate", "1/2d", "--per-key")):
        assert "INVALID_REQUEST" in shell("subscriptions", "limit", SUBSCRIPTION, *wrong, *SEA, status=1)
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        about = {"what": "subscription", "name": SUBSCRIPTION}
        limited = await api.post("/contexts/sea/controls/limit", {**about, "rate": "5/1s", "per_key": True})
        assert limited["was"] == "10/1m per key"
        [now] = await api.get("/contexts/sea/controls")
        assert (now["limit"], now["former"]) == ("5/1s per key", "10/1m per key")
        await api.post("/contexts/sea/controls/limit", {**about, "per_key": True}, 422)
        browser, page = Browser(api.client), "/contexts/sea/controls"
        asked = await browser.open(f"{page}/limit", **about)
        await browser.send(f"{page}/limit", [*asked.fields, ("rate", "3/1m"), ("per_key", "1")])
        assert "3/1m per key" in (await browser.open(page)).text


async def test_a_rate_of_keys_that_is_none_is_refused(sub: Subscription) -> None:
    for wrong in (Limit(concurrency=1, per_key=True), Limit(interval=timedelta(days=2), per_key=True)):
        with pytest.raises(InvalidRequest):
            await controls_of(sub).limit(What.SUBSCRIPTION, SUBSCRIPTION, wrong, None, ANN)
