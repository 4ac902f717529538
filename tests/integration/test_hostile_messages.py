"""No message makes a batch raise: what cannot be read is a dead letter, and its neighbours are none the worse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from nats.js.api import StreamConfig

from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.ledger import PostgresLedger
from relay.commands.reconcile import FindMissing
from relay.devstack import NatsServer
from relay.domain.identity import stand_in_id
from relay.ports import Delivery
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription
from tests.integration.hostile import Raw, good, hostile, noise, publish_raw
from tests.integration.incidents import Desk, at_the_desk
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: Some subjects as they are shown: what is no text is escaped, and can be undone.
SHOWN = {
    "subject: NUL": r"a\x00b.v1",
    "subject: no UTF-8": r"a\xffb.v1",
    "subject: a lone surrogate": r"a\xed\xa0\x80b.v1",
    "subject: a vertical tab": r"a\x0bb.v1",
    "subject: a space that is no space": r"a\xc2\xa0b.v1",
    "subject: a backslash and NUL": r"a\\x00\x00b.v1",
}


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


def between(sub: Subscription, bad: Sequence[Raw]) -> tuple[list[UUID], list[Raw]]:
    """The bad ones with a good one around each, and the ids of those."""
    ids, messages = [], []
    for number, raw in enumerate([*bad, None]):
        id, message = good(sub, number)
        ids.append(id)
        messages += [message] if raw is None else [message, raw]
    return ids, messages


async def fetch_all(consumer: NatsJetStreamConsumer) -> list[list[Delivery]]:
    """Everything that waits, in batches as a pull job gets them."""
    batches = []
    while batch := [*await consumer.fetch(100, timedelta(milliseconds=500)), *await consumer.finish()]:
        batches.append(batch)
    return batches


async def settle(desk: Desk) -> tuple[list[UUID], list[dict[str, Any]]]:
    """Handle what is in the inbox and record what died; returns which were handled, and the incidents."""
    sub, handler = desk.sub, Handler()
    process = sub.process(handler)
    done = 0
    while done < len(sub.enqueued):
        done += 1
        await process.process(sub.enqueued[done - 1])
    await desk.record().run()
    return [request.message_id for request in handler.requests], await desk.rows()


async def all_settled(sub: Subscription, stream: str, durable: str) -> None:
    """Wait until nothing is left of a stream: neither pending nor forgotten."""
    last = (await sub.js.stream_info(stream)).state.last_seq

    async def floor() -> bool:
        info = await sub.js.consumer_info(stream, durable)
        return bool(info.ack_floor.stream_seq == last and not info.num_ack_pending and not info.num_pending)

    await eventually("everything is acknowledged", floor)


async def check(desk: Desk, ids: list[UUID], bad: dict[str, Raw], first: int = 2) -> None:
    """Every good one handled once, every bad one one incident, nothing un-acknowledged, no connection lost."""
    sub = desk.sub
    handled, incidents = await settle(desk)
    assert sorted(handled) == sorted(ids)
    expected = {stand_in_id(sub.stream, first + 2 * n): name for n, name in enumerate(bad)}
    assert {row["message_id"]: row["class"] for row in incidents} == dict.fromkeys(expected, "poison")
    assert len(incidents) == len(bad)
    shown = {expected[row["message_id"]]: row["subject"] for row in incidents}
    assert {name: shown[name] for name in SHOWN} == {
        name: f"{sub.name}.event.{subject}" for name, subject in SHOWN.items()
    }
    assert {bytes(row["original"]) for row in incidents} == {raw.body for raw in bad.values()}
    await all_settled(sub, sub.stream, "down")
    await all_settled(sub, sub.dlq, desk.letters._durable)
    assert sub.consumer.losses == 0


@pytest.mark.parametrize("settle_mode", ["handler", "inbox"])
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
async def test_each_is_a_dead_letter_and_its_neighbours_are_handled(
    desk: Desk, settle_mode: str, ordered: bool
) -> None:
    sub = desk.sub
    sub.settle = settle_mode
    if ordered:
        sub.keep_order()
    bad = hostile(sub)
    ids, messages = between(sub, list(bad.values()))
    await publish_raw(sub.nats_url, messages)
    for batch in await fetch_all(sub.consumer):
        await sub.pull().accept(batch)
    await check(desk, ids, bad)


async def test_those_that_a_worker_took_with_it_are_recovered(desk: Desk) -> None:
    sub = desk.sub
    bad = hostile(sub)
    ids, messages = between(sub, list(bad.values()))
    await publish_raw(sub.nats_url, messages)
    await fetch_all(sub.consumer)  # and dies with them
    assert await sub.recovery().recover() == len(messages)
    await check(desk, ids, bad)


async def test_those_that_were_delivered_too_often_are_rescued(desk: Desk) -> None:
    """The advisories may be junk as well."""
    sub = desk.sub
    bad = hostile(sub)
    ids, messages = between(sub, list(bad.values()))
    await publish_raw(sub.nats_url, messages)
    await fetch_all(sub.consumer)
    stream = f"{sub.stream}_ADVISORIES"
    await sub.js.add_stream(StreamConfig(name=stream, subjects=[f"{sub.name}x.advisory"]))
    await sub.js.add_consumer(stream, durable_name="rescue", ack_policy="explicit")
    named = [json.dumps({"stream_seq": seq}).encode() for seq in range(1, len(messages) + 1)]
    junk = [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b'{"stream_seq":%d}' % 10**40,
        b'{"stream_seq":-1}',
        b"[" * 90_000,
    ]
    junk += [b'{"stream_seq":true}', b'{"stream_seq":1e400}', b'{"stream_seq":"7"}', b"7" * 5_000]
    subject = f"{sub.name}x.advisory".encode()
    for body in [*junk, *named]:
        await publish_raw(sub.nats_url, [Raw(subject, None, body)])
    advisories = NatsJetStreamConsumer(sub.nats, stream=stream, durable="rescue")
    assert await sub.recovery().rescue(advisories) == len(messages)
    await all_settled(sub, stream, "rescue")
    await check(desk, ids, bad)


async def test_those_that_the_inbox_lost_are_found_again(desk: Desk) -> None:
    sub = desk.sub
    bad = hostile(sub)
    ids, messages = between(sub, list(bad.values()))
    await publish_raw(sub.nats_url, messages)
    for batch in await fetch_all(sub.consumer):
        await sub.consumer.ack([delivery.reply for delivery in batch])
    await all_settled(sub, sub.stream, "down")
    find = FindMissing(
        sub.context,
        SUBSCRIPTION,
        stream=sub.stream,
        filter_subject=f"{sub.name}.event.>",
        consumer=sub.consumer,
        auditor=NatsStreamAuditor(sub.nats),
        inbox=PostgresLedger(sub.pool),
    )
    assert await sub.recovery().reconcile(find) == len(messages)
    assert await sub.recovery().reconcile(find) == 0
    await check(desk, ids, bad)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_bytes_come_each_message_ends(desk: Desk, seed: int) -> None:
    sub = desk.sub
    ids, messages = between(sub, noise(sub, seed, 120))
    await publish_raw(sub.nats_url, messages)
    for batch in await fetch_all(sub.consumer):
        await sub.pull().accept(batch)
    handled, incidents = await settle(desk)
    assert set(ids) <= set(handled)
    rows = await sub.rows()
    assert len(handled) + len(incidents) == len(rows)
    assert all(row["processed_at"] or row["dead_lettered_at"] for row in rows)
    await all_settled(sub, sub.stream, "down")
    await all_settled(sub, sub.dlq, desk.letters._durable)


async def test_what_anybody_sends_to_the_dead_letter_stream_is_an_incident_each(desk: Desk) -> None:
    sub = desk.sub
    prefix = f"{sub.context}.dlq.".encode()
    fields: dict[str, Any] = {"message_id": str(UUID(int=7)), "class": "poison", "reason": "r", "attempts": 1}

    def letter(**values: Any) -> bytes:
        return json.dumps({**fields, **values}).encode()

    subjects = [raw.subject.partition(b".event.")[2] for name, raw in hostile(sub).items() if name in SHOWN]
    junk = [Raw(prefix + subject, None, b"{}") for subject in subjects]
    bodies = [
        b"",
        b"\xff\x00",
        b"[" * 90_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        letter(message_id="\ud800"),
        letter(message_id=7),
        letter(**{"class": ["poison"]}),
        letter(**{"class": "\x00"}),
        letter(attempts=10**400),
        letter(occurrence=2**31),
        letter(stream_seq=10**30),
        letter(original="\ud800"),
        letter(original=7, original_encoding="base64"),
        letter(correlation_id="\ud800"),
        letter(reason=7).replace(b"7", b"7" * 5_000),
    ]
    junk += [Raw(prefix + b"x", b"XXXX", body) for body in bodies]
    strange = [
        letter(message_id=str(UUID(int=n + 100)), **values)
        for n, values in enumerate(
            [
                {"reason": "a\x00b\ud800"},
                {"reason": {"deep": "\x00"}},
                {"original_subject": "a\x00\udfff" * 9_000},
                {"event_type": "\x00", "subscription": "\ud800", "stream": "\x00"},
                {"headers": {"\x00": "\ud800", "a": ["\x00"], "b" * 9_000: None}},
                {"headers": "\x00"},
            ]
        )
    ]
    around = [letter(message_id=str(UUID(int=n))) for n in (1, 2)]
    readable = [Raw(prefix + b"x", None, body) for body in (around[0], *strange, around[1])]
    messages = [readable[0], *junk, *readable[1:]]
    await publish_raw(sub.nats_url, messages)
    assert await desk.record().run() == len(messages)
    rows = {row["letter_seq"]: row for row in await desk.rows()}
    assert {row["class"] for row in rows.values()} == {"unconfirmed"}
    claimed = {row["originals"]["id"] for row in rows.values() if row["originals"]}
    assert claimed == {str(UUID(int=n)) for n in (1, 2, *range(100, 100 + len(strange)))}
    assert [rows[seq]["subject"] for seq in range(2, len(SHOWN) + 2)] == [
        f"{sub.context}.dlq.{subject}" for subject in SHOWN.values()
    ]
    await all_settled(sub, sub.dlq, desk.letters._durable)
    assert desk.letters.losses == 0
