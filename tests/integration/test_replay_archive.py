"""A replay reads from the archive what the stream has dropped: each message once, whatever moves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from nats.js.api import StreamConfig

from relay.adapters.coldstore import FolderStore
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.archive import PostgresArchive
from relay.commands.archive import ArchiveRows, BatchLimits
from relay.commands.coldrows import ColdRows
from relay.devstack import NatsServer
from tests.integration.archiving import AFTER, ANN, DAY
from tests.integration.consuming import SUBSCRIPTION, Subscription, another, subscribed
from tests.integration.test_replay import ASKED, BOB, counts, handled, replays, work

pytestmark = pytest.mark.anyio

#: Twelve events: eight are old enough for the archive, in files of three.
ALL, OLD, FILE = 12, 8, 3


@dataclass
class History:
    """Events of a producer in its stream, its outbox and its archive."""

    sub: Subscription
    root: Path
    ids: list[UUID]

    async def archive(self) -> None:
        """Move what is old enough out of the outbox."""
        tables = PostgresArchive(self.sub.pool.connection, self.sub.context)
        store, auditor = FolderStore(self.root), NatsStreamAuditor(self.sub.nats)
        limits = BatchLimits(rows=FILE)
        await ArchiveRows(
            self.sub.context, AFTER, tables, store, auditor, self.sub.facts.append, limits=limits
        ).run(ANN)

    async def grow_old(self, count: int) -> None:
        age = "now() - interval '100 days' + published_seq * interval '1 s'"
        await self.sub.query(
            f"UPDATE outbox_events SET published_at = {age} WHERE id = ANY (%s)", self.ids[:count]
        )

    async def drop(self, below: int) -> None:
        """Have the stream drop what it stored before a sequence."""
        await self.sub.js.purge_stream(self.sub.stream, seq=below)

    def work(self, sub: Subscription, **parts: Any) -> Any:
        usual = work(sub)
        tables = PostgresArchive(sub.pool.connection, sub.context)
        cold = ColdRows(tables, FolderStore(self.root), lambda _row: None)
        assert usual.producer is not None
        return replace(usual, producer=replace(usual.producer, cold=cold), **parts)

    async def replay(self, sub: Subscription, **asked: Any) -> dict[str, Any]:
        id = await replays(sub).start(sub.subscription, BOB, **(ASKED | asked))
        while (found := await replays(sub).take([sub.subscription])) is not None:
            await self.work(sub).run(found, lambda: True)
        [row] = await replays(sub).list(1, id)
        return row


async def no_pause(_seconds: float) -> None:
    """A rate says how large a step is; the tests need no pause between steps."""
    await asyncio.sleep(0)


async def inbox(sub: Subscription) -> list[UUID]:
    """What a subscription has, in the order of the stream, by the ids of the producer."""
    found = "SELECT coalesce(source_id, message_id) AS id FROM inbox_messages WHERE subscription = %s"
    rows = await sub.query(f"{found} ORDER BY stream_seq", sub.subscription)
    return [row["id"] for row in rows]


@pytest.fixture
async def history(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[History]:
    insert = """
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at,
                                   published_stream, published_seq, publish_attempts)
        SELECT id, 'vibe', '7', 'vibe_created', '{}', now(), %s, seq, 1
        FROM unnest(%s::uuid[]) WITH ORDINALITY AS given (id, seq)"""
    async with subscribed(database_url, nats_server.url) as sub:
        subjects = [f"{sub.name}.>"]
        await sub.js.update_stream(StreamConfig(name=sub.stream, subjects=subjects, max_age=7 * DAY))
        ids = [await sub.send() for _ in range(ALL)]
        await sub.query(insert, sub.stream, ids)
        (tmp_path / "cold").mkdir()
        history = History(sub, tmp_path / "cold", ids)
        await history.grow_old(OLD)
        yield history


@pytest.mark.parametrize("first", [1, 4, OLD + 1, OLD + 3, ALL + 1])
async def test_a_new_subscription_gets_each_message_once_however_much_the_stream_has_dropped(
    history: History, first: int
) -> None:
    """The stream overlaps with the archive, or begins right after it, or within the outbox, or holds nothing."""
    await history.archive()
    await history.drop(first)
    new = await another(history.sub, "newcomer")
    row = await history.replay(new)
    assert await inbox(new) == history.ids
    both = max(0, OLD - first + 1)  # the stream offers them once more
    assert counts(row) == ("finished", ALL, 0, both)
    assert await inbox(history.sub) == []
    assert counts(await history.replay(new))[:3] == ("finished", 0, 0)
    assert await inbox(new) == history.ids


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("first", [4, ALL + 1])
async def test_what_was_handled_is_skipped_or_handled_again_once(
    history: History, first: int, again: bool
) -> None:
    sub = history.sub
    await sub.pull().accept(await sub.fetch())
    assert await handled(sub, *history.ids) == history.ids
    await history.archive()
    await history.drop(first)
    assert counts(await history.replay(sub, again=again))[:3] == ("finished", 0, ALL * again)
    assert await handled(sub, *history.ids) == history.ids * again
    assert await inbox(sub) == history.ids


async def test_a_key_a_type_and_a_time_narrow_what_the_archive_has(history: History) -> None:
    await history.archive()
    await history.drop(ALL + 1)
    new = await another(history.sub, "newcomer")
    [early] = await history.sub.query("SELECT now() - interval '50 days' AS at")
    for asked, expected in (
        ({"key": "vibe:7", "until": early["at"]}, history.ids[:OLD]),
        ({"key": "vibe:8"}, []),
        ({"event_type": "other"}, []),
        ({"since": early["at"]}, history.ids[OLD:]),
    ):
        await history.sub.query("DELETE FROM inbox_messages")
        await history.replay(new, **asked)
        assert await inbox(new) == expected, asked


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", range(1, 7))
async def test_a_worker_that_dies_at_any_step_leaves_the_rest_to_the_next(
    history: History, step: int, again: bool
) -> None:
    """With two messages a second a file of three is left in its middle."""
    sub = history.sub
    if again:
        await sub.pull().accept(await sub.fetch())
        await handled(sub, *history.ids)
    await history.archive()
    await history.drop(ALL + 1)
    id = await replays(sub).start(SUBSCRIPTION, BOB, **(ASKED | {"rate": 2, "again": again}))
    slept = 0

    async def die(_seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == step:
            raise asyncio.CancelledError

    found = await replays(sub).take([SUBSCRIPTION])
    assert found is not None
    with pytest.raises(asyncio.CancelledError):
        await history.work(sub, sleep=die).run(found, lambda: True)
    before = await handled(sub, *history.ids)
    assert 0 < len(before) < ALL
    await sub.query("UPDATE inbox_replays SET claimed_until = now() - interval '1 s'")
    while (found := await replays(sub).take([SUBSCRIPTION])) is not None:
        await history.work(sub, sleep=no_pause).run(found, lambda: True)
    [row] = await replays(sub).list(1, id)
    assert counts(row) == ("finished", 0 if again else ALL, ALL if again else 0, 0)
    assert [*before, *await handled(sub, *history.ids)] == history.ids


@pytest.mark.parametrize("turns", ["one", "many"])
@pytest.mark.parametrize("step", range(1, 9))
async def test_what_moves_into_the_archive_while_it_reads_is_not_missed(
    history: History, step: int, turns: str
) -> None:
    """At any step all events of the outbox grow old, go into the archive, and leave the stream."""
    await history.archive()
    await history.drop(OLD + 1)
    new = await another(history.sub, "newcomer")
    id = await replays(new).start("newcomer", BOB, **(ASKED | {"rate": 2}))
    slept = 0

    async def moving(_seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == step:
            await history.grow_old(ALL)
            await history.archive()
            await history.drop(ALL + 1)

    while (found := await replays(new).take(["newcomer"])) is not None:
        await history.work(new, sleep=moving).run(found, lambda: turns == "one")
    [row] = await replays(new).list(1, id)
    assert (row["state"], row["added"]) == ("finished", ALL)
    assert await inbox(new) == history.ids
    [rest] = await history.sub.query("SELECT count(*) AS n FROM outbox_events")
    assert (rest["n"] == 0) == (slept >= step)


async def test_a_stream_that_is_gone_is_no_reason_to_leave_out_the_archive(history: History) -> None:
    await history.archive()
    new = await another(history.sub, "newcomer")
    await history.sub.js.delete_stream(history.sub.stream)
    assert counts(await history.replay(new, until=None)) == ("finished", OLD, 0, 0)
    assert await inbox(new) == history.ids[:OLD]


async def test_the_rate_holds_for_the_archive_too(history: History) -> None:
    await history.archive()
    await history.drop(ALL + 1)
    new = await another(history.sub, "newcomer")
    slept: list[float] = []

    async def noted(seconds: float) -> None:
        slept.append(seconds)

    await replays(new).start("newcomer", BOB, **(ASKED | {"rate": 2}))
    while (found := await replays(new).take(["newcomer"])) is not None:
        await history.work(new, sleep=noted).run(found, lambda: True)
    # Files of 3, 3 and 2 in steps of 2 and 1; then four events of the outbox. A step of two has a second.
    assert len(slept) == 7
    assert all(it <= 1 for it in slept)
