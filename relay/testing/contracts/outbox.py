"""The contract of the outbox: claims of events to publish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID, uuid4

from relay.domain.errors import DatabaseUnreachable
from relay.domain.model import Lifespan, OutboxEvent
from relay.domain.ordering import LANES
from relay.domain.policies import Published
from relay.ports import ClaimedBatch, OutboxRepository, PublishFailure

_ALL: Final = range(LANES)
_MUCH: Final = 1_000_000
_DELAY: Final = timedelta(hours=1)
_LITTLE: Final = timedelta(minutes=10)


class PublishState(NamedTuple):
    """What the outbox has recorded about an event. ``ack``: its PubAck, if it is published."""

    attempts: int
    error: str | None
    dead: bool
    ack: Published | None


class OutboxBench(Protocol):
    """An empty outbox that skips dead events, and how a test changes it."""

    @property
    def outbox(self) -> OutboxRepository:
        """The adapter."""

    async def add(self, *events: OutboxEvent) -> None:
        """Commit events in one transaction, in this order."""

    async def elapse(self, time: timedelta) -> None:
        """Let this time pass while no claim is open: move the clock, or move all times in the rows back."""

    async def lose_claims(self) -> None:
        """Make all open claims lose their rows, like the claims of a process that paused for too long."""

    async def state(self, id: UUID) -> PublishState:
        """Return what is committed about an event."""


class OutboxContract:
    """Needs the fixture ``bench``: an `OutboxBench`."""

    async def test_a_claim_returns_events_of_a_key_in_the_order_of_their_commits(self, bench: OutboxBench) -> None:
        events = [_event(key) for key in ("a", "b", "", "a", "b", "", "a")]
        for event in events:
            await bench.add(event)
        async with _claim(bench) as claim:
            for key in ("a", "b", ""):
                found = [row.id for row in claim.rows if row.partition_key == key]
                assert found == [str(it.id) for it in events if it.partition_key == key]

    async def test_a_row_tells_the_event(self, bench: OutboxBench) -> None:
        about: dict[str, Any] = {"correlation_id": uuid4(), "causation_id": uuid4(), "topic": "vibe.special"}
        about |= {"stream": "SPECIAL", "originals": {"id": "evt_1"}}
        event = _event("a", payload='{"n": 1}', event_version=3, headers={"Actor": "ann"}, **about)
        await bench.add(event)
        async with _claim(bench) as claim:
            [row] = claim.rows
        assert row[:4] == (str(event.id), event.event_type, 3, '{"n": 1}')
        assert row[5:14] == (
            *(str(event.correlation_id), str(event.causation_id), "a", "vibe.special", '{"Actor": "ann"}'),
            *(0, 0, '{"id": "evt_1"}', "SPECIAL"),
        )
        assert row.seq > 0

    async def test_what_a_claim_holds_no_other_claim_gets(self, bench: OutboxBench) -> None:
        await bench.add(*(_event(key) for key in "abcd"), _event(""))
        async with _claim(bench, limit=2) as first, _claim(bench) as second:
            assert first.rows
            assert not {row.id for row in first.rows} & {row.id for row in second.rows}
            keys = {row.partition_key for row in first.rows} - {""}
            assert keys.isdisjoint(row.partition_key for row in second.rows)

    async def test_a_published_event_keeps_its_puback_and_does_not_come_again(self, bench: OutboxBench) -> None:
        event, acked = _event("a"), Published("UP", 7, duplicate=True)
        await bench.add(event)
        async with _claim(bench) as claim:
            marked = await claim.mark_published({str(event.id): acked})
            assert list(marked) == [str(event.id)]
        assert await bench.state(event.id) == PublishState(1, None, dead=False, ack=acked)
        assert await _ids(bench) == []

    async def test_an_exception_rolls_a_claim_back(self, bench: OutboxBench) -> None:
        event, other = _event("a"), _event("b")
        await bench.add(event, other)
        with suppress(ZeroDivisionError):
            async with _claim(bench) as claim:
                await claim.mark_published({str(event.id): Published("UP", 1)})
                await claim.increment_attempts([PublishFailure(str(other.id), "boom", _DELAY)])
                _ = 1 / 0
        for it in (event, other):
            assert await bench.state(it.id) == PublishState(0, None, dead=False, ack=None)
        assert sorted(await _ids(bench)) == sorted(str(it.id) for it in (event, other))

    async def test_a_lost_claim_cannot_commit_and_its_events_are_free(self, bench: OutboxBench) -> None:
        event = _event("a")
        await bench.add(event)
        try:
            async with _claim(bench) as claim:
                await claim.mark_published({str(event.id): Published("UP", 1)})
                await bench.lose_claims()
                assert await _ids(bench) == [str(event.id)]
        except DatabaseUnreachable:
            assert (await bench.state(event.id)).ack is None
        else:
            raise AssertionError("it was committed")

    async def test_a_failed_event_waits_and_holds_back_its_key_and_nobody_else(self, bench: OutboxBench) -> None:
        failed, behind, other = _event("a"), _event("a"), _event("b")
        await bench.add(failed, behind, other)
        await _fail(bench, failed, _DELAY)
        assert await bench.state(failed.id) == PublishState(1, "boom", dead=False, ack=None)
        assert await _ids(bench) == [str(other.id)]
        await bench.elapse(_DELAY - _LITTLE)
        assert await _ids(bench) == [str(other.id)]
        await bench.elapse(_LITTLE)
        assert str(failed.id) in await _ids(bench)
        await _fail(bench, failed, _DELAY)
        assert (await bench.state(failed.id)).attempts == 2

    async def test_a_dead_event_is_kept_and_never_claimed_again(self, bench: OutboxBench) -> None:
        dead, behind = _event("a"), _event("a")
        await bench.add(dead, behind)
        await _fail(bench, dead, None)
        assert await bench.state(dead.id) == PublishState(1, "boom", dead=True, ack=None)
        await bench.elapse(_DELAY)
        assert await _ids(bench) == [str(behind.id)]

    async def test_a_delayed_event_waits_and_does_not_hold_its_key(self, bench: OutboxBench) -> None:
        delayed = _event("a", available_at=datetime(2200, 1, 1, tzinfo=UTC))
        behind, over = _event("a"), _event("b", available_at=datetime(2020, 1, 1, tzinfo=UTC))
        await bench.add(delayed, behind, over)
        assert await _ids(bench) == [str(behind.id), str(over.id)]

    async def test_a_claim_has_at_most_its_limit_and_tells_that_there_is_more(self, bench: OutboxBench) -> None:
        events = [_event("a") for _ in range(5)]
        await bench.add(*events)
        seen: list[str] = []
        for _ in range(3):
            async with _claim(bench, limit=2) as claim:
                assert len(claim.rows) <= 2
                assert claim.more or len(seen) + len(claim.rows) == 5
                seen += [row.id for row in claim.rows]
                await claim.mark_published({row.id: Published("UP", 1) for row in claim.rows})
        assert seen == [str(event.id) for event in events]
        async with _claim(bench) as claim:
            assert (list(claim.rows), claim.more) == ([], False)

    async def test_a_claim_ends_with_the_event_that_brings_it_to_its_bytes(self, bench: OutboxBench) -> None:
        await bench.add(*(_event("a", payload='"%s"' % (100 * "x")) for _ in range(4)))
        for max_bytes, count in ((1, 1), (150, 2)):
            async with _claim(bench, max_bytes=max_bytes) as claim:
                assert len(claim.rows) == count
                assert claim.more

    async def test_lanes_divide_the_keys(self, bench: OutboxBench) -> None:
        events = [_event(f"key {n}") for n in range(20)]
        await bench.add(*events)
        found: list[str] = []
        for lanes in (_ALL[::2], _ALL[1::2]):
            async with bench.outbox.find_unpublished(lanes, 100, _MUCH) as claim:
                assert set(claim.busy) <= set(lanes)
                found += [row.id for row in claim.rows]
        assert sorted(found) == sorted(str(event.id) for event in events)

    async def test_a_key_with_many_events_leaves_room_for_the_other_lanes(self, bench: OutboxBench) -> None:
        await bench.add(*(_event("busy") for _ in range(20)), *(_event(f"key {n}") for n in range(8)))
        async with _claim(bench, limit=10) as claim:
            assert {row.partition_key for row in claim.rows} > {"busy"}

    async def test_one_event_is_claimed_though_it_is_dead_or_waits(self, bench: OutboxBench) -> None:
        dead, waits, published, behind = _event("a"), _event("b"), _event("c"), _event("b")
        await bench.add(dead, waits, published, behind)
        await _fail(bench, dead, None)
        await _fail(bench, waits, _DELAY)
        async with _claim(bench) as claim:
            await claim.mark_published({str(published.id): Published("UP", 1)})
        for id, rows in ((dead.id, 1), (waits.id, 1), (published.id, 0), (behind.id, 0), (uuid4(), 0)):
            async with bench.outbox.find_one(id) as claim:
                assert [row.id for row in claim.rows] == [str(id)][:rows]

    async def test_a_stale_event_is_over_and_holds_back_nobody(self, bench: OutboxBench) -> None:
        stale, fresh, usual, endless = (
            _event("a", timing=Lifespan(expires_in=_DELAY)),
            _event("a", timing=Lifespan(expires_in=2 * _DELAY)),
            _event("a"),
            _event("a"),
        )
        await bench.add(stale, fresh, usual, endless)
        await _fail(bench, stale, _LITTLE)
        await bench.elapse(_DELAY + _LITTLE)
        async with _claim(bench) as claim:
            assert [row.id for row in claim.rows] == [str(stale.id)]  # it has failed: the others wait
            assert claim.rows[0].expires_at is not None
            judged = await claim.expire({str(stale.id): None})
        assert [it.stale for it in judged.values()] == [True]
        async with _claim(bench) as claim:
            assert [row.id for row in claim.rows] == [str(it.id) for it in (fresh, usual, endless)]
            judged = await claim.expire({str(fresh.id): 10 * _DELAY, str(usual.id): _LITTLE})
            assert [judged[str(it.id)].stale for it in (fresh, usual)] == [False, True]
            left = judged[str(fresh.id)].seconds
            assert left is not None
            assert 0 < left <= _DELAY.total_seconds()
        assert await _ids(bench) == [str(it.id) for it in (fresh, endless)]

    async def test_a_delay_spends_none_of_an_events_time(self, bench: OutboxBench) -> None:
        event = _event("a", timing=Lifespan(delay=_DELAY, expires_in=_LITTLE))
        await bench.add(event)
        assert await _ids(bench) == []
        await bench.elapse(_DELAY)
        async with _claim(bench) as claim:
            assert not (await claim.expire({str(event.id): None}))[str(event.id)].stale

    async def test_a_claim_of_one_event_waits_for_its_lane(self, bench: OutboxBench) -> None:
        event = _event("a")
        await bench.add(event)

        async def one() -> Sequence[Any]:
            async with bench.outbox.find_one(event.id) as alone:
                return alone.rows

        async with _claim(bench) as claim:
            waiting = asyncio.create_task(one())
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done
            await claim.mark_published({str(event.id): Published("UP", 1)})
        assert list(await waiting) == []


def _event(key: str, **values: Any) -> OutboxEvent:
    defaults: dict[str, Any] = {"aggregate_type": "vibe", "aggregate_id": "v1", "event_type": "vibe_created"}
    return OutboxEvent(id=uuid4(), partition_key=key, **{**defaults, "payload": "{}", **values})


def _claim(
    bench: OutboxBench, *, limit: int = 100, max_bytes: int = _MUCH
) -> AbstractAsyncContextManager[ClaimedBatch]:
    return bench.outbox.find_unpublished(_ALL, limit, max_bytes)


async def _ids(bench: OutboxBench) -> list[str]:
    async with _claim(bench) as claim:
        return [row.id for row in claim.rows]


async def _fail(bench: OutboxBench, event: OutboxEvent, delay: timedelta | None) -> None:
    async with _claim(bench) as claim:
        await claim.increment_attempts([PublishFailure(str(event.id), "boom", delay)])
