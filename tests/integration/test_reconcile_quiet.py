"""ReconcileStream where nothing is lost, or not ours to bring back: nothing is published again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from nats.js.api import StreamConfig

from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.ledger import PostgresLedger
from relay.commands.reconcile import LedgerEntry, Stored, windows
from relay.domain.errors import BrokerUnreachable
from relay.domain.facts import StreamLossFound
from tests.integration.publishing import Relay, event, outbox_rows, query
from tests.integration.reconciling import command, delete, foreign, only, publish, recreate

pytestmark = pytest.mark.anyio


async def untouched(relay: Relay, *, turns: int = 3) -> None:
    before = outbox_rows(relay.url)
    audit = command(relay)
    for turn in range(turns):
        assert only(await audit.tick(turn)).lost == 0
    for repair in (False, True):
        assert only(await audit.everything(repair=repair)).lost == 0
    assert outbox_rows(relay.url) == before
    assert not [fact for fact in relay.facts if isinstance(fact, StreamLossFound)]


async def test_where_nothing_is_lost_nothing_is_published_again(relay: Relay) -> None:
    await relay.create_stream()
    await publish(relay, 7)
    await foreign(relay, 3)
    relay.add(event("waiting"))
    await untouched(relay)


async def test_what_the_stream_let_go_by_right_stays_gone(relay: Relay) -> None:
    """Purged by an operator, or older than max_age."""
    await relay.create_stream()
    await publish(relay, 3)
    await relay.admin(lambda js: js.purge_stream(relay.stream))
    await publish(relay, 1)
    await untouched(relay)
    await relay.update_stream(max_age=3600)
    await publish(relay, 2)
    query(relay.url, "UPDATE outbox_events SET published_at = now() - interval '2 hours'")
    await delete(relay, 5)
    await untouched(relay)
    await recreate(relay)
    await relay.update_stream(max_age=3600)
    await untouched(relay)


async def test_what_expires_while_we_read_is_not_lost(relay: Relay) -> None:
    await relay.create_stream()
    await publish(relay, 3)

    class Purging(NatsStreamAuditor):
        async def stored(self, *arguments: Any) -> Sequence[Stored]:
            await relay.admin(lambda js: js.purge_stream(relay.stream))
            return await super().stored(*arguments)

    report = only(await command(relay, Purging(relay.nats)).everything(repair=False))
    assert (report.checked, report.lost) == (3, 0)


async def test_a_reading_that_is_cut_short_is_an_outage_and_no_loss(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that restarts forgets who is reading, and a stream that it loads is not found for a moment."""
    await relay.create_stream()
    await publish(relay, 5)
    client = await relay.nats.client()
    publish_one, asked = client.publish, 0

    async def forget(subject: str, *arguments: Any, **options: Any) -> None:
        nonlocal asked
        asked += "CONSUMER.MSG.NEXT" in subject
        if asked == 2:
            monkeypatch.setattr(client, "publish", publish_one)
            await relay.admin(lambda js: js.delete_consumer(*subject.split(".")[-2:]))
        await publish_one(subject, *arguments, **options)

    monkeypatch.setattr(client, "publish", forget)
    with pytest.raises(BrokerUnreachable):
        await command(relay, NatsStreamAuditor(relay.nats, batch=2)).everything(repair=True)
    assert asked == 2
    await untouched(relay)


async def test_what_one_reading_does_not_show_and_the_next_does_is_not_lost(relay: Relay) -> None:
    """A replica that is behind, or a server that is loading its streams."""
    await relay.create_stream()
    await publish(relay, 3)

    class Behind(NatsStreamAuditor):
        readings = 0

        async def stored(self, *arguments: Any) -> Sequence[Stored]:
            self.readings += 1
            found = await super().stored(*arguments)
            return found if self.readings > 1 else found[:1]

    auditor = Behind(relay.nats)
    report = only(await command(relay, auditor).everything(repair=True))
    assert (report.checked, report.lost, auditor.readings) == (3, 0, 2)
    await untouched(relay)


async def test_an_event_whose_ack_said_duplicate_is_held(relay: Relay) -> None:
    await relay.create_stream()
    await publish(relay, 1)
    query(relay.url, "UPDATE outbox_events SET published_at = NULL")
    await relay.drained()
    assert outbox_rows(relay.url)[0]["published_duplicate"]
    await untouched(relay)


async def test_a_replay_under_way_is_left_alone(relay: Relay) -> None:
    await relay.create_stream()
    await publish(relay, 2)
    await delete(relay, 2)
    query(relay.url, "UPDATE outbox_events SET published_at = NULL, generation = 1 WHERE published_seq = 2")
    await untouched(relay)


async def test_an_entry_that_changed_meanwhile_is_left_alone(relay: Relay) -> None:
    await relay.create_stream()
    [id] = await publish(relay, 1)
    ledger, auditor = PostgresLedger(relay.pool), NatsStreamAuditor(relay.nats)
    state = await auditor.state(relay.stream)
    assert state is not None
    assert (await ledger.republish(relay.stream, state, [LedgerEntry(id, 2)])).count == 0
    assert (await ledger.republish("OTHER", state, [LedgerEntry(id, 1)])).count == 0
    counts = [(await ledger.republish(relay.stream, state, [LedgerEntry(id, 1)])).count for _ in range(2)]
    assert counts == [1, 0]
    await relay.drained()
    seq = outbox_rows(relay.url)[0]["published_seq"]
    query(relay.url, "UPDATE outbox_events SET published_at = NULL")  # a replay, under way
    assert (await ledger.republish(relay.stream, state, [LedgerEntry(id, seq)])).count == 0


async def test_events_in_several_streams_are_looked_for_where_they_went(relay: Relay) -> None:
    await relay.create_stream()
    other = StreamConfig(name=f"{relay.stream}_OTHER", subjects=[f"{relay.context}.other.>"])
    await relay.admin(lambda js: js.add_stream(other))
    relay.add(event(), *[event(topic=f"{relay.context}.other.x") for _ in range(3)])
    await relay.drained()
    await relay.admin(lambda js: js.delete_msg(other.name, 2))
    reports = await command(relay).everything(repair=False)
    assert {report.stream: report.lost for report in reports} == {relay.stream: 0, other.name: 1}


async def test_no_consumer_is_left_behind(relay: Relay) -> None:
    await relay.create_stream()
    await publish(relay, 3)
    await command(relay).everything(repair=False)
    assert await relay.admin(lambda js: js.consumers_info(relay.stream)) == []


async def test_more_messages_than_one_request_brings_are_read(relay: Relay) -> None:
    auditor = NatsStreamAuditor(relay.nats, batch=3)
    await relay.create_stream()
    await foreign(relay, 10)
    await delete(relay, 5)
    stored = await auditor.stored(relay.stream, 2, 9)
    assert [message.seq for message in stored] == [2, 3, 4, 6, 7, 8, 9]
    assert await auditor.stored(relay.stream, 11, 20) == []


@pytest.mark.parametrize("span", [1, 10, 11, 20, 57])
def test_turns_cover_everything_and_each_has_the_latest_page(span: int) -> None:
    first, last = 11, 10 + span
    seen: set[int] = set()
    for turn in range(1_000, 1_006):
        ranges = windows(first, last, turn, 10)
        assert ranges[-1][1] == last
        assert all(end - begin < 10 for begin, end in ranges)
        seen.update(seq for begin, end in ranges for seq in range(begin, end + 1))
    assert seen == set(range(first, last + 1))


def test_an_empty_stream_has_no_windows() -> None:
    assert windows(1, 0, 3, 10) == windows(8, 7, 0, 10) == []
