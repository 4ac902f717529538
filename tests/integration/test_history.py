"""The history of a context: a row a minute and series, hours made of them, once, with its gaps, for little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.history import Minute, PostgresHistory
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.sql import statement
from relay.domain.history import SPANS, ContextHistory, Level, Of, Point, Told, bucketed, times_of
from relay.execution.tallies import SAMPLES, Tallies
from scheduler.history import HistoryTick
from tests.integration.crowded import events, messages, tasks

pytestmark = pytest.mark.anyio

#: The minute that is recorded, and a moment of it, in Python and in SQL.
AT = datetime(2026, 3, 1, 10, 57, tzinfo=UTC)
MINUTE = f"timestamptz '{AT}'"
INSIDE = f"{MINUTE} + interval '30 seconds'"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[PostgresHistory, PostgresBacklogReader]]:
    async with connected(url, "test", 10.0) as source:
        yield PostgresHistory(source, grace=timedelta()), PostgresBacklogReader(source)


def rows(url: str, what: str = "*", order: str = "step, at, kind, name") -> list[dict[str, Any]]:
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as conn:
        return conn.execute(f"SELECT {what} FROM history ORDER BY {order}").fetchall()  # type: ignore[arg-type]


def run(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(text)  # type: ignore[arg-type]


def at(url: str, expression: str) -> datetime:
    with psycopg.connect(url, autocommit=True) as conn:
        found = conn.execute(f"SELECT {expression}").fetchone()  # type: ignore[arg-type]
        assert found is not None
        return found[0]  # type: ignore[no-any-return]


def minutes(url: str, begin: str, count: int, more: str = "") -> None:
    """Write minutes of the outbox, as a leader does that had nothing to say."""
    run(
        url,
        "INSERT INTO history (step, kind, name, at, done, handling)"
        f" SELECT 'minute', 'outbox', '', {begin} + n * interval '1 minute', 60, '{{}}'"
        f" FROM generate_series(0, {count - 1}) AS n {more}",
    )


# --- a minute ---


async def test_a_minute_holds_what_ended_in_it_of_each_series(database_url: str) -> None:
    ago = f"{INSIDE} - interval '2 seconds'"
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 4, "'key' || n", occurred_at=ago, published_at=INSIDE)
        events(conn, 3, "'key' || n", occurred_at=ago, published_at=f"{MINUTE} - interval '1 second'")
        events(conn, 2, "'dead' || n", occurred_at=ago, dead_at=INSIDE, publish_attempts="3")
        messages(conn, 1, 5, "orders", received_at=ago, processed_at=INSIDE)
        messages(conn, 1, 1, "mail", received_at=ago, dead_lettered_at=INSIDE)
        tasks(conn, 6, type="'thumb'", created_at=ago, finished_at=INSIDE, status="'completed'")
        tasks(conn, 1, type="'thumb'", created_at=ago, finished_at=INSIDE, status="'failed'")
    async with opened(database_url) as (history, backlogs):
        assert await history.record(AT, await backlogs.levels())
    found = {(it["kind"], it["name"]): it for it in rows(database_url)}
    assert {name: (it["done"], it["died"]) for name, it in found.items()} == {
        ("outbox", ""): (4, 2),
        ("subscription", "mail"): (0, 1),
        ("subscription", "orders"): (5, 0),
        ("task", "thumb"): (6, 1),
    }
    for of, name in (("outbox", ""), ("subscription", "orders"), ("task", "thumb")):
        waited = times_of({int(bucket): n for bucket, n in found[of, name]["waited"].items()})
        assert waited is not None
        assert waited.p50 == pytest.approx(2.0, rel=0.1)
    assert found["outbox", ""]["dead"] == 2
    assert found["task", "thumb"]["dead"] == 1


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.001, 0.0011, 0.004, 0.3, 1.0, 59.0, 4_000.0, 9e6, 9e8])
async def test_the_database_and_a_worker_put_a_time_into_the_same_bucket(
    database_url: str, seconds: float
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        ago = f"{INSIDE} - interval '{seconds:f} seconds'"
        tasks(conn, 1, type="'one'", created_at=ago, finished_at=INSIDE, status="'completed'")
    async with opened(database_url) as (history, _):
        await history.record(AT, [])
    [found] = rows(database_url)
    assert {int(bucket): n for bucket, n in found["waited"].items()} == bucketed([seconds])


async def test_what_waits_now_is_in_the_minute(database_url: str) -> None:
    ago = "now() - interval '100 seconds'"
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 3, "'key' || n", occurred_at=ago)
        messages(conn, 1, 4, "orders", received_at=ago)
        tasks(conn, 5, type="'thumb'", created_at=ago)
        tasks(conn, 5, type="'later'", created_at=ago, available_at="now() + interval '1 hour'")
    async with opened(database_url) as (history, backlogs):
        await history.record(AT, await backlogs.levels())
    found = {(it["kind"], it["name"]): it for it in rows(database_url)}
    assert {name: it["waiting"] for name, it in found.items()} == {
        ("outbox", ""): 3,
        ("subscription", "orders"): 4,
        ("task", "thumb"): 5,
    }
    assert all(it["oldest_seconds"] >= 100 for it in found.values())


async def test_a_minute_is_written_once_whoever_leads(database_url: str) -> None:
    """Two leaders at once: a paused one that has not noticed, and the new one."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        messages(conn, 1, 5, "orders", received_at=INSIDE, processed_at=INSIDE)
    async with opened(database_url) as (one, levels), opened(database_url) as (other, _):
        found = await levels.levels()
        done = await asyncio.gather(*(it.record(AT, found) for it in (one, other) * 4))
    assert sum(done) == 1
    assert [it["done"] for it in rows(database_url)] == [0, 5]


# --- the leader's clock ---


class Pages:
    """Notes what is written."""

    def __init__(self, *found: Minute) -> None:
        self.found = [*found]
        self.done: list[tuple[str, datetime]] = []

    async def minute(self) -> Minute:
        return self.found.pop(0)

    async def record(self, at: datetime, levels: Sequence[Level], releases: Mapping[str, int]) -> bool:
        self.done.append(("record", at))
        return True

    async def roll_up(self, at: datetime) -> int:
        self.done.append(("roll up", at))
        return 0


async def nothing_waits() -> Sequence[Level]:
    return []


async def nobody() -> Mapping[str, int]:
    return {}


async def test_the_leader_asks_once_a_minute_and_rolls_up_once_an_hour() -> None:
    first, now = datetime(2026, 3, 1, 10, 57, tzinfo=UTC), 0.0
    every = [Minute(first + timedelta(minutes=n), False, 60.0) for n in range(4)]
    pages = Pages(*every)
    tick = HistoryTick(pages, nothing_waits, nobody, lambda: now)
    for _ in range(4 * 12):  # as often as the clock of the scheduler calls it
        await tick.tick()
        now += 5
    assert pages.found == []
    assert [at for what, at in pages.done if what == "record"] == [it.at for it in every]
    assert [at for what, at in pages.done if what == "roll up"] == [every[0].at, every[2].at]


async def test_a_new_leader_does_not_write_the_minute_of_the_old_one() -> None:
    minute = datetime(2026, 3, 1, 10, 57, tzinfo=UTC)
    pages = Pages(Minute(minute, True, 12.0), Minute(minute + timedelta(minutes=1), False, 60.0))
    now = 100.0
    tick = HistoryTick(pages, nothing_waits, nobody, lambda: now)
    await tick.tick()
    assert ("record", minute) not in pages.done
    now += 12
    await tick.tick()
    assert pages.done[-1] == ("record", minute + timedelta(minutes=1))


async def test_the_last_whole_minute_is_recorded_and_the_next_one_is_known(database_url: str) -> None:
    async with opened(database_url) as (history, backlogs):
        minute = await history.minute()
        assert not minute.recorded
        assert 0 < minute.next_in_seconds <= 61
        await history.record(minute.at, await backlogs.levels())
        assert (await history.minute()).recorded or (await history.minute()).at > minute.at


# --- what workers tell ---


async def test_what_workers_tell_is_added_to_the_minute_once(database_url: str) -> None:
    async with opened(database_url) as (history, _):
        for _ in range(2):
            await history.tell(
                [Told(Of.SUBSCRIPTION, "orders", 3, bucketed([0.2] * 10))], ago=timedelta(minutes=1)
            )
        minute = at(database_url, "(SELECT max(at) FROM history_tallies)")
        await history.record(minute, [])
        await history.record(minute + timedelta(minutes=1), [Level(Of.OUTBOX, "", 0, 0, 0)])
    [first, second] = rows(database_url)
    assert (first["name"], first["failed"], sum(first["handling"].values())) == ("orders", 6, 20)
    assert (second["kind"], second["handling"]) == ("outbox", {})


async def test_a_worker_tells_how_long_calls_took_and_forgets_them() -> None:
    told: list[tuple[str, Sequence[Told]]] = []

    class Ear:
        def __init__(self, context: str) -> None:
            self.context = context

        async def tell(self, found: Sequence[Told], *, ago: timedelta = timedelta()) -> None:
            told.append((self.context, found))

    tallies = Tallies(Ear)
    tally = tallies.of("sea", Of.SUBSCRIPTION)["orders"]
    for _ in range(SAMPLES * 2):
        tally.took(0.5)
    tally.failed += 1
    tallies.of("sea", Of.TASK)["quiet"]
    await tallies.tell(timedelta())
    await tallies.tell(timedelta())
    assert told == [("sea", [Told(Of.SUBSCRIPTION, "orders", 1, bucketed([0.5] * SAMPLES))])]


# --- hours ---


async def test_hours_are_made_of_minutes_and_old_rows_go(database_url: str) -> None:
    hour = f"({MINUTE} - interval '2 hours 57 minutes')"
    minutes(database_url, hour, 40)
    minutes(database_url, f"{MINUTE} - interval '50 hours'", 3)
    more = "INSERT INTO history (step, kind, name, at, done, failed, waiting, handling, waited)"
    for n, waiting in ((1, 10), (2, 70)):
        run(
            database_url,
            f"{more} VALUES ('minute', 'subscription', 'orders', {hour} + interval '{n} minutes', 5, 1, {waiting},"
            """ '{"8": 4, "9": 1}', '{"12": 5}')""",
        )
    run(
        database_url,
        f"{more} VALUES ('hour', 'outbox', '', {MINUTE} - interval '91 days', 1, 1, 1, '{{}}', '{{}}')",
    )
    async with opened(database_url) as (history, _):
        now = AT
        assert await history.roll_up(now) >= 1
        assert await history.roll_up(now) == 0
    found = rows(database_url)
    begin = AT - timedelta(hours=2, minutes=57)
    hours = {(it["kind"], it["name"]): it for it in found if it["step"] == "hour" and it["at"] == begin}
    outbox, orders = hours["outbox", ""], hours["subscription", "orders"]
    assert (outbox["minutes"], outbox["done"]) == (40, 40 * 60)
    assert (orders["done"], orders["failed"], orders["waiting"]) == (10, 2, 70)
    assert (orders["handling"], orders["waited"]) == ({"8": 8, "9": 2}, {"12": 10})
    assert min(it["at"] for it in found if it["step"] == "minute") == begin
    assert min(it["at"] for it in found) > AT - timedelta(days=90)


# --- reading ---


async def read(url: str, span: str = "1h", of: Of | None = None, name: str = "") -> ContextHistory:
    async with opened(url) as (history, _):
        return await history.read("sea", SPANS[span], of, name)


def series(found: ContextHistory, of: Of, name: str = "") -> Sequence[Point]:
    [one] = [it for it in found.series if (it.of, it.name) == (of, name)]
    return one.points


@pytest.mark.parametrize("span", SPANS)
async def test_a_gap_is_a_gap_and_silence_is_zero(database_url: str, span: str) -> None:
    """Whatever the span: what was not recorded is told from what had nothing to say."""
    part = SPANS[span].part
    first = at(database_url, f"date_bin('{part}', now(), 'epoch') - 3 * interval '{part}'")
    begin = f"timestamptz '{first}'"
    run(
        database_url,
        "INSERT INTO history (step, kind, name, at, minutes, done) VALUES"
        f" ('{SPANS[span].step}', 'outbox', '', {begin}, 1, 120),"
        f" ('{SPANS[span].step}', 'outbox', '', {begin} + 2 * interval '{part}', 1, 60),"
        f" ('{SPANS[span].step}', 'subscription', 'orders', {begin}, 1, 30)",
    )
    found = await read(database_url, span)
    outbox, orders = series(found, Of.OUTBOX), series(found, Of.SUBSCRIPTION, "orders")
    shown = {it.at: it for it in outbox}
    assert [shown[first + part * n].minutes for n in range(3)] == [1, 0, 1]
    assert shown[first].rate == 2.0
    shown = {it.at: it for it in orders}
    assert [(shown[first + part * n].minutes, shown[first + part * n].done) for n in range(3)] == [
        (1, 30),
        (0, 0),
        (1, 0),
    ]


async def test_now_is_compared_with_an_hour_and_a_day_ago(database_url: str) -> None:
    base = "date_trunc('minute', now()) - interval '2 minutes'"
    for ago, done in (("0", 60), ("1 hour", 120), ("1 day", 240)):
        run(
            database_url,
            "INSERT INTO history (step, kind, name, at, done) VALUES"
            f" ('minute', 'outbox', '', {base} - interval '{ago}', {done})",
        )
    [outbox] = (await read(database_url)).series
    compared = [outbox.now, outbox.hour_ago, outbox.day_ago]
    assert [it and it.rate for it in compared] == [1.0, 2.0, 4.0]


async def test_what_operators_did_and_circuits_are_marks(database_url: str) -> None:
    run(
        database_url,
        "INSERT INTO audit_log (at, actor, action, ids) VALUES"
        " (now() - interval '5 minutes', 'ann', 'dlq.requeue', '{1,2,3}'),"
        " (now() - interval '4 minutes', 'ann', 'subscriptions.pause', '{orders}'),"
        " (now() - interval '5 hours', 'ann', 'dlq.discard', '{1}')",
    )
    run(
        database_url,
        "INSERT INTO handler_circuits (subscription, opened_at, closed_at) VALUES"
        " ('mail', now() - interval '3 minutes', now() - interval '9 minutes')",
    )
    run(
        database_url,
        "INSERT INTO alerts (class, state, subject_type, subject, reason, about, raised_at) VALUES"
        " ('condition', 'raised', 'handler', 'mail', 'away', '{\"code\": \"handler_away\"}',"
        "  now() - interval '2 minutes'),"
        " ('condition', 'lasting', 'handler', 'mail', 'away', '{\"code\": \"handler_away\"}', now())",
    )
    found = await read(database_url)
    assert [(it.what, it.about, it.actor) for it in found.marks] == [
        ("circuit.open", "mail", None),
        ("subscriptions.pause", "orders", "ann"),
        ("dlq.requeue", "3", "ann"),
        ("circuit.close", "mail", None),
    ]


@pytest.mark.parametrize(
    ("minutes", "marks"),
    [
        ("1 1 1", []),
        ("1 12 2", ["2"]),
        ("1 2 1", ["1", "2"]),  # and back: the newest first
        ("1 - - 1 2", ["2"]),  # the workers were not known for two minutes
        ("- - 1 1", []),  # a history begins
        ("1 123 23", ["2", "3"]),
    ],
)
async def test_a_release_that_begins_to_run_is_a_mark(database_url: str, minutes: str, marks: list[str]) -> None:
    """Each word: the releases that ran in a minute."""
    told = minutes.split()
    begin = at(database_url, "date_trunc('minute', now())") - timedelta(minutes=len(told) + 2)
    levels = [Level(Of.OUTBOX, "", 0, 0.0, 0)]
    async with opened(database_url) as (history, _):
        for n, names in enumerate(told):
            releases = {} if names == "-" else dict.fromkeys(names, 2)
            assert await history.record(begin + timedelta(minutes=n), levels, releases)
    found = await read(database_url)
    assert sorted(str(it.about) for it in found.marks) == marks
    assert {(it.what, it.actor) for it in found.marks} <= {("release", None)}
    assert [it.at for it in found.marks] == sorted((it.at for it in found.marks), reverse=True)
    assert [(it.of, it.name) for it in found.series] == [(Of.OUTBOX, "")], "a release is no series"


async def test_marks_of_releases_stay_for_the_days_of_the_hours(database_url: str) -> None:
    async with opened(database_url) as (history, _):
        hour = at(database_url, "date_trunc('hour', now(), 'UTC') - interval '60 hours'")
        for n, release in enumerate(("1", "1", "2", "2")):
            when = hour + timedelta(hours=n)
            await history.record(when, [Level(Of.OUTBOX, "", 0, 0.0, 0)], {release: 3})
            await history.roll_up(when + timedelta(minutes=59))
        found = await history.read("sea", SPANS["90d"])
    assert [(it.at, it.about) for it in found.marks] == [(hour + timedelta(hours=2), "2")]


# --- what it costs ---


async def test_the_rows_of_a_minute_are_read_by_their_indexes(database_url: str) -> None:
    """Among very many rows, only those of the minute are read: no table is read as a whole."""
    old = "now() - n * interval '1 second' - interval '1 hour'"
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 20_000, "'key' || n", occurred_at=old, published_at=old)
        messages(conn, 1, 20_000, "orders", received_at=old, processed_at=old)
        tasks(conn, 20_000, type="'t'", created_at=old, finished_at=old, status="'completed'")
        conn.execute("ANALYZE")
        parameters = {
            "at": AT,
            "buckets": 126,
            "per_e": 5.77,
            **{key: [] for key in ("kinds", "names", "waiting", "oldest", "dead")},
        }
        plan = conn.execute("EXPLAIN " + statement("history/record"), parameters).fetchall()
    text = "\n".join(line for (line,) in plan)
    for table in ("outbox_events", "inbox_messages", "task_outbox"):
        assert f"Seq Scan on {table}" not in text, text
    for index in ("idx_outbox_published", "idx_inbox_processed", "idx_task_finished"):
        assert index in text, text


async def test_fifty_subscriptions_cost_little(database_url: str) -> None:
    """The processor time of a minute on this side. That of the server is in the benchmark."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        for number in range(50):
            messages(conn, 1, 20, f"sub{number}", received_at=INSIDE, processed_at=INSIDE)
            messages(conn, 1, 5, f"sub{number}", received_at=INSIDE)
    async with opened(database_url) as (history, backlogs):
        await history.record(AT, await backlogs.levels())
        began, count = time.process_time(), 10
        for number in range(count):
            await history.record(AT - timedelta(minutes=number + 1), await backlogs.levels())
        spent = (time.process_time() - began) / count
    assert spent < 0.005 * 60
