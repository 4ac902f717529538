"""ReconcileStream: what a stream lost is published again, in order and each event once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.commands.reconcile import AuditedStream
from relay.devstack import NatsServer
from relay.domain.facts import StreamLossFound
from tests.integration.consuming import subscribed
from tests.integration.publishing import Relay, event, query
from tests.integration.reconciling import (
    OlderStore,
    command,
    connected,
    delete,
    foreign,
    held,
    losing,
    only,
    publish,
    recreate,
)
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


# --- real loss ---


async def test_a_lost_tail_is_published_again_in_order_each_event_once_and_reaches_the_inbox(
    database_url: str, own_nats: NatsServer, tmp_path: Path
) -> None:
    async with subscribed(database_url, own_nats.url) as sub, Relay(database_url, own_nats.url, sub.name) as relay:
        store = OlderStore(own_nats, tmp_path / "older")
        kept = await publish(relay, 3)
        await sub.pull().accept(await sub.fetch())
        store.keep()
        await connected(relay)
        lost = [*await publish(relay, 3), *await publish(relay, 2, "v2")]
        store.restore()
        await connected(relay)
        assert await held(relay) == kept

        report = only(await command(relay).everything(repair=False))
        assert (report.tail.count, list(report.tail.ids), report.middle.count) == (5, lost, 0)
        assert await held(relay) == kept
        assert relay.unpublished() == []

        report = only(await command(relay).everything(repair=True))
        assert (report.lost, report.repaired, report.checked) == (5, True, 3)
        assert [row["id"] for row in relay.unpublished()] == lost
        await relay.drained()
        found = await held(relay)
        assert sorted(found) == sorted([*kept, *lost])
        assert [id for id in found if id in lost[:3]] == lost[:3]
        assert [id for id in found if id in lost[3:]] == lost[3:]
        assert only(await command(relay).everything(repair=True)).lost == 0
        [fact] = [fact for fact in relay.facts if isinstance(fact, StreamLossFound) and fact.repaired]
        assert (fact.tail, fact.middle, list(fact.ids)) == (5, 0, lost)

        async def received() -> bool:
            await sub.pull().accept(await sub.fetch())
            return len(await sub.rows()) == 8

        await eventually("the inbox holds every event", received)
        assert sorted(row["message_id"] for row in await sub.rows()) == sorted([*kept, *lost])


async def test_a_loss_that_new_events_have_covered_up_is_found_by_the_tick(
    database_url: str, own_nats: NatsServer, tmp_path: Path
) -> None:
    """The sequences were given out again, so last_seq looks well, and it is not the turn of their page."""
    async with losing(database_url, own_nats, tmp_path) as (relay, store):
        kept = await publish(relay, 2)
        store.keep()
        await connected(relay)
        lost = await publish(relay, 3)
        store.restore()
        await connected(relay)
        new = await publish(relay, 5)
        report = only(await command(relay, page=2).tick(page=0))
        assert (report.tail.count, report.middle.count, list(report.middle.ids)) == (0, 3, lost)
        await relay.drained()
        assert await held(relay) == [*kept, *new, *lost]
        assert only(await command(relay).tick(page=1)).lost == 0


async def test_events_published_while_we_look_are_not_taken_for_lost(
    database_url: str, own_nats: NatsServer, tmp_path: Path
) -> None:
    async with losing(database_url, own_nats, tmp_path) as (relay, store):
        store.keep()
        await connected(relay)
        lost = await publish(relay, 3)
        store.restore()
        await connected(relay)

        class Late(NatsStreamAuditor):
            new: list[UUID]

            async def state(self, stream: str) -> AuditedStream | None:
                state = await super().state(stream)
                if not hasattr(self, "new"):
                    self.new = []
                    self.new = await publish(relay, 2)
                    assert state is not None
                    self.first = state
                return self.first

        late = Late(relay.nats)
        report = only(await command(relay, late).everything(repair=True))
        assert (report.tail.count, list(report.tail.ids)) == (3, lost)
        await relay.drained()
        assert sorted(await held(relay)) == sorted([*late.new, *lost])


async def test_a_loss_seen_only_once_is_not_believed(relay: Relay) -> None:
    """A leader that is behind may answer once."""
    await relay.create_stream()
    await publish(relay, 3)

    class Behind(NatsStreamAuditor):
        looks = 0

        async def state(self, stream: str) -> AuditedStream | None:
            self.looks += 1
            state = await super().state(stream)
            return replace(state, last_seq=1) if state and self.looks == 1 else state

    report = only(await command(relay, Behind(relay.nats)).tick(page=0))
    assert report.lost == 0
    assert relay.unpublished() == []


@pytest.mark.parametrize("outgrown", [False, True])
async def test_a_stream_that_was_made_anew_gets_its_events_back(relay: Relay, outgrown: bool) -> None:
    await relay.create_stream()
    lost = await publish(relay, 3)
    audit = command(relay)
    assert only(await audit.tick(page=0)).lost == 0
    await recreate(relay)
    new = await publish(relay, 4, "v2") if outgrown else []
    assert only(await audit.tick(page=1)).lost == 3
    await relay.drained()
    assert await held(relay) == [*new, *lost]


async def test_a_stream_made_anew_and_filled_by_others_is_read_in_full(
    relay: Relay,
) -> None:
    """Nothing in the ledger looks wrong, and no check would come to it for long."""
    await relay.create_stream()
    lost = await publish(relay, 4)
    audit = command(relay, page=2)
    await audit.tick(page=0)
    await recreate(relay)
    await foreign(relay, 20)
    report = only(await audit.tick(page=5))
    assert (report.middle.count, list(report.middle.ids)) == (4, lost)


async def test_a_stream_that_is_missing_is_reported_and_nothing_touched(relay: Relay) -> None:
    await relay.create_stream()
    await publish(relay, 2)
    await relay.admin(lambda js: js.delete_stream(relay.stream))
    report = only(await command(relay).everything(repair=True))
    assert (report.exists, report.lost, report.repaired) == (False, 0, False)
    assert relay.unpublished() == []


# --- loss in the middle ---


async def test_a_message_that_vanished_from_the_middle_is_not_swallowed_by_the_duplicate_window(
    relay: Relay,
) -> None:
    await relay.create_stream()
    await foreign(relay, 2)
    ids = await publish(relay, 4)
    await delete(relay, 4)
    report = only(await command(relay).tick(page=0))
    assert (report.tail.count, report.middle.count, list(report.middle.ids)) == (0, 1, [ids[1]])
    await relay.drained()
    last = await relay.admin(lambda js: js.get_msg(relay.stream, 7))
    assert last.headers["Nats-Msg-Id"] == f"{ids[1]}.1"
    assert only(await command(relay).everything(repair=True)).lost == 0


async def test_after_the_window_the_event_keeps_its_generation(relay: Relay) -> None:
    await relay.create_stream(duplicate_window=0.1)
    await foreign(relay, 1)
    [id] = await publish(relay, 1)
    await delete(relay, 2)
    over = time.monotonic() + 0.3
    await eventually("the window is over", lambda: time.monotonic() > over)
    query(relay.url, "UPDATE outbox_events SET published_at = published_at - interval '1 minute'")
    assert only(await command(relay).everything(repair=True)).lost == 1
    await relay.drained()
    last = await relay.admin(lambda js: js.get_msg(relay.stream, 3))
    assert last.headers["Nats-Msg-Id"] == str(id)


@pytest.mark.parametrize("page", [2, 3, 4, 1000])
async def test_every_page_is_read_whatever_claims_a_sequence_twice(relay: Relay, page: int) -> None:
    await relay.create_stream()
    ids = await publish(relay, 9)
    query(relay.url, "UPDATE outbox_events SET published_seq = published_seq - 1 WHERE published_seq IN (3, 6)")
    await delete(relay, 9)
    report = only(await command(relay, page=page).everything(repair=False))
    assert set(report.middle.ids) == {ids[2], ids[5], ids[8]}
    assert (report.lost, report.checked) == (3, 9)


async def test_order_within_a_key_is_kept_although_one_had_failed_and_one_was_delayed(relay: Relay) -> None:
    await relay.create_stream()
    await foreign(relay, 1)
    ids = await publish(relay, 4)
    query(relay.url, "UPDATE outbox_events SET available_at = now(), publish_attempts = 3 WHERE id = %s", ids[3])
    for seq in (2, 3, 4, 5):
        await delete(relay, seq)
    relay.add(event())
    await command(relay).everything(repair=True)
    await relay.drained(relay.command(batch_size=1))
    assert (await held(relay))[:4] == ids
