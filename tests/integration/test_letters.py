"""Dead letters and those who imitate them: ids of their own, incidents that come from the row, and no loops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from nats.js.api import StreamConfig

from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.postgres.inbox_operations import PostgresMessageOperations
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.devstack import NatsServer
from relay.domain.envelopes import LETTER
from relay.domain.errors import BrokerRefused
from relay.domain.facts import DeadLetterDelayed, ForeignLetterFound, MessageDeadLettered
from relay.domain.letters import letter_id
from relay.domain.operators import Operator
from relay.ports import HeldMessage
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription
from tests.integration.incidents import ANN, Desk, at_the_desk, waiting_for_locks
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


async def received(desk: Desk) -> UUID:
    """A message that waits in the inbox, and will die."""
    return await desk.sub.received()


async def dies(desk: Desk, message_id: UUID) -> None:
    await desk.sub.process(Handler.answering(422)).process(message_id)
    assert (await desk.sub.row(message_id))["dead_lettered_at"] is not None


async def put(desk: Desk, body: bytes, subject: str = "x", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    ack = await desk.sub.js.publish(f"{desk.sub.context}.dlq.{subject}", body, headers=named)
    return int(ack.seq)


def forged(message_id: object, **fields: Any) -> bytes:
    known = {
        "message_id": str(message_id),
        "occurrence": 1,
        "class": "exhausted",
        "reason": "forged",
        "attempts": 1,
    }
    return json.dumps({**known, "subscription": SUBSCRIPTION, "original_subject": "a.b", **fields}).encode()


async def real(desk: Desk, message_id: UUID) -> dict[str, Any]:
    """The incident of a row; there is exactly one."""
    [row] = await desk.sub.query(
        "SELECT d.* FROM dead_letters AS d JOIN inbox_messages AS i USING (message_id)"
        " WHERE message_id = %s AND occurrence = requeues + 1",
        message_id,
    )
    assert (row["reason"], row["class"]) == ("HTTP 422: why", "poison")
    return row


async def unconfirmed(desk: Desk) -> list[dict[str, Any]]:
    return [row for row in await desk.rows() if row["class"] == "unconfirmed"]


def own_id(desk: Desk, message_id: UUID, occurrence: int = 1) -> str:
    return str(letter_id(desk.sub.context, SUBSCRIPTION, message_id, occurrence))


# --- ids ---


@pytest.mark.parametrize("under", ["the id of the letter", "the id of the message"])
async def test_a_foreign_letter_under_an_id_hides_no_real_one(desk: Desk, under: str) -> None:
    message_id = await received(desk)
    id = str(message_id) if under == "the id of the message" else own_id(desk, message_id)
    await put(desk, b"foreign", Nats_Msg_Id=id)
    await dies(desk, message_id)
    assert await desk.record().run() == 2
    assert (await real(desk, message_id))["status"] == "open"
    [strange] = await unconfirmed(desk)
    assert (strange["letter_seq"], strange["original"]) == (1, b"foreign")
    found = [fact for fact in desk.sub.facts if isinstance(fact, ForeignLetterFound)]
    assert [(it.stream_seq, it.message_id) for it in found] == [(1, message_id)] * (
        under == "the id of the letter"
    )
    assert await count(desk, desk.sub.dlq) == 2


async def test_whoever_computes_every_id_hides_no_real_letter(desk: Desk) -> None:
    """Each foreign letter under an id leads to the next id, until one cannot be known."""
    from relay.domain.letters import another_id

    message_id = await received(desk)
    id = UUID(own_id(desk, message_id))
    for _ in range(6):
        seq = await put(desk, b"foreign", Nats_Msg_Id=str(id))
        id = another_id(id, seq)
    await dies(desk, message_id)
    await desk.record().run()
    assert (await real(desk, message_id))["letter_seq"] == 7


async def test_a_letter_that_was_deleted_from_the_stream_is_stored_again(desk: Desk) -> None:
    message_id = await received(desk)
    await dies(desk, message_id)
    await desk.sub.js.purge_stream(desk.sub.dlq)
    await desk.sub.query("UPDATE inbox_messages SET dead_lettered_at = NULL")  # its worker died behind the letter
    await dies(desk, message_id)
    assert (await desk.sub.js.stream_info(desk.sub.dlq)).state.messages == 1


async def test_a_letter_that_is_routed_again_is_stored_once_wherever_its_message_came_again(desk: Desk) -> None:
    message_id = await received(desk)
    await dies(desk, message_id)
    await desk.sub.query("UPDATE inbox_messages SET dead_lettered_at = NULL, stream_seq = 99")
    await dies(desk, message_id)
    assert len(await desk.sub.dead_letters()) == 1
    assert not [fact for fact in desk.sub.facts if isinstance(fact, ForeignLetterFound)]


async def test_a_letter_that_may_not_be_compared_is_stored_twice_rather_than_never(desk: Desk) -> None:
    class Refusing:
        async def find(self, stream: str, seq: int) -> HeldMessage | None:
            raise BrokerRefused("no right")

    message_id = await received(desk)
    await put(desk, b"foreign", Nats_Msg_Id=own_id(desk, message_id))
    await desk.sub.process(Handler.answering(422), stored=Refusing()).process(message_id)
    assert (await desk.sub.js.stream_info(desk.sub.dlq)).state.messages == 2


async def test_an_answer_in_the_name_of_another_stream_is_not_believed(desk: Desk) -> None:
    await desk.sub.js.delete_stream(desk.sub.dlq)
    await desk.sub.js.add_stream(
        StreamConfig(name=f"{desk.sub.name}_OTHER", subjects=[f"{desk.sub.context}.dlq.>"])
    )
    message_id = await received(desk)
    assert await desk.sub.process(Handler.answering(422)).process(message_id) is not None
    assert (await desk.sub.row(message_id))["dead_lettered_at"] is None


# --- letters of others ---

FORGERIES: Mapping[str, Callable[[UUID], bytes]] = {
    "before it dies": forged,
    "in capitals": lambda id: forged(str(id).upper()),
    "of another subscription": lambda id: forged(id, subscription="another"),
    "of no subscription": lambda id: forged(id, subscription=None),
    "of a later death": lambda id: forged(id, occurrence=2),
    "with an original": lambda id: forged(id, original="forged", headers={"a": "b"}),
    "by the key of the inbox": lambda id: forged("text", inbox_id=str(id)),
}


@pytest.mark.parametrize("kind", FORGERIES)
@pytest.mark.parametrize("closed", [True, False])
async def test_a_forged_letter_that_came_first_hides_no_real_one(desk: Desk, kind: str, closed: bool) -> None:
    message_id = await received(desk)
    await put(desk, FORGERIES[kind](message_id))
    assert await desk.record().run() == 1
    [strange] = await desk.rows()
    assert strange["class"] == "unconfirmed"
    assert (await desk.incidents.requeue([strange["id"]], ANN)).refused[0][1].code == "NOT_REQUEUEABLE"
    if closed:
        assert (await desk.incidents.discard([strange["id"]], ANN)).done
    await dies(desk, message_id)
    assert await desk.record().run() == 1
    incident = await real(desk, message_id)
    assert (incident["status"], incident["letter_seq"]) == ("open", 2)
    assert (await desk.incidents.requeue([incident["id"]], ANN)).done


async def test_a_forged_letter_about_a_death_changes_nothing_in_its_incident(desk: Desk) -> None:
    message_id = await received(desk)
    await dies(desk, message_id)
    body = (await desk.sub.row(message_id))["body"]
    await put(desk, forged(message_id, original="forged"))
    [first, second] = await desk.fetch()
    assert await desk.record().accept([second, first]) == 1
    incident = await real(desk, message_id)
    assert (incident["original"], incident["attempts"], incident["status"]) == (body, 1, "open")
    assert await desk.record().accept([second, first]) == 0


HUGE = forged(uuid4(), original="x" * 900_000)
STRANGE = (
    b"",
    b"\x00\xff",
    b"{}",
    b"[]",
    b"5",
    b'{"message_id": "\\u0000"}',
    b"[" * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    forged(uuid4(), headers={"a": json.loads("[" * 400 + "]" * 400)}),
    forged(uuid4(), original="\ud800"),
    forged(uuid4(), reason={"a": "\ud800"}, subscription="\x00"),
    forged(uuid4(), attempts=10**30),
    forged("x" * 5_000),
    forged(uuid4(), **{"class": "Exhausted"}),
    b'{"message_id": ' + b"9" * 5_000 + b"}",
    HUGE,
)


async def test_one_bad_letter_stops_no_other(desk: Desk) -> None:
    ids = [await received(desk) for _ in range(2)]
    await dies(desk, ids[0])
    for body in STRANGE:
        await put(desk, body)
    await put(desk, b"{}", subject="x." * 400 + "x")
    await dies(desk, ids[1])
    assert await desk.record().run() == len(STRANGE) + 3
    assert await desk.unacked() == 0
    for id in ids:
        assert (await real(desk, id))["status"] == "open"
    assert len(await unconfirmed(desk)) == len(STRANGE) + 1
    assert max(len(row["original"] or b"") for row in await unconfirmed(desk)) <= 256 * 1024


async def test_a_letter_that_postgresql_refuses_stops_no_other(desk: Desk) -> None:
    """Whatever the rules for letters let through: here a text that no column takes."""
    from relay.domain.letters import read_letter

    message_id = await received(desk)
    await dies(desk, message_id)
    [letter] = [read_letter(it.subject, it.body, it.stream, it.stream_seq) for it in await desk.fetch()]
    bad = replace(letter, message_id=uuid4(), subject="a\x00b", letter_seq=9)
    recorded = await desk.incidents.record_letters([bad, letter])
    assert {it.kind for it in recorded} == {"unconfirmed", "poison"}


async def test_a_letter_has_its_place_also_if_the_row_is_recorded_at_the_same_time(
    desk: Desk, database_url: str
) -> None:
    """Both find no incident. Who comes second waits for the first, and adds what only the letter knows."""
    message_id = await received(desk)
    await dies(desk, message_id)
    async with await psycopg.AsyncConnection.connect(database_url) as other:

        @asynccontextmanager
        async def source() -> AsyncIterator[Any]:
            yield other

        async with other.transaction():
            assert len(await PostgresIncidents(source).record_rows([message_id])) == 1
            reading = asyncio.create_task(desk.record().run())
            await eventually("it waits for the other", lambda: waiting_for_locks(database_url) or reading.done())
        assert await reading == 0
    row = await real(desk, message_id)
    assert (row["letter_stream"], row["letter_seq"]) == (desk.sub.dlq, 1)


# --- rows without an incident ---


async def test_a_dead_row_whose_letter_the_stream_lost_gets_its_incident(desk: Desk) -> None:
    ids = [await received(desk) for _ in range(3)]
    for id in ids:
        await dies(desk, id)
    await desk.sub.js.purge_stream(desk.sub.dlq)
    assert await desk.record().run() == 0
    assert await desk.recording().compare() == 3
    for id in ids:
        assert (await real(desk, id))["letter_seq"] is None
    assert await desk.recording().compare() == 0


async def test_a_row_is_found_among_many_however_old(desk: Desk) -> None:
    await desk.sub.query(
        "INSERT INTO inbox_messages (message_id, subject, subscription, dead_letter_reason, dead_letter_class,"
        " dead_lettered_at) SELECT gen_random_uuid(), 's', 'sub', 'why', 'poison',"
        " now() - n * interval '1 s' FROM generate_series(1, 25) AS n"
    )
    recording = replace(desk.recording(), page=10)
    assert [await recording.compare() for _ in range(4)] == [10, 10, 5, 0]


async def test_an_incident_that_is_found_by_its_letter_later_learns_its_place(desk: Desk) -> None:
    message_id = await received(desk)
    await dies(desk, message_id)
    await desk.recording().compare()
    assert await desk.record().run() == 0
    assert (await real(desk, message_id))["letter_seq"] == 1


async def test_a_false_incident_of_an_older_release_makes_room_for_the_real_one(desk: Desk) -> None:
    message_id = await received(desk)
    await desk.sub.query(
        "INSERT INTO dead_letters (message_id, subscription, subject, class, reason, status)"
        " VALUES (%s, %s, 's', 'exhausted', 'forged', 'discarded')",
        message_id,
        SUBSCRIPTION,
    )
    await dies(desk, message_id)
    await desk.record().run()
    assert await desk.recording().compare() == 1
    assert (await real(desk, message_id))["status"] == "open"
    [strange] = await unconfirmed(desk)
    assert strange["status"] == "discarded"


async def test_retry_of_a_dead_message_names_its_incident_also_if_it_had_none(desk: Desk) -> None:
    message_id = await received(desk)
    await dies(desk, message_id)
    operations = PostgresMessageOperations(desk.sub.pool.connection)
    [(_, error)] = (await operations.retry([message_id], Operator("ann"))).refused
    incident = await real(desk, message_id)
    assert (error.code, error.hint) == ("NOT_RETRYABLE", f"relay dlq requeue {incident['id']}")
    assert (await desk.incidents.requeue([incident["id"]], ANN)).done


# --- a stream that takes no letter ---


@pytest.mark.parametrize("state", ["missing", "full", "sealed"])
async def test_what_cannot_become_a_letter_is_an_incident_at_once(desk: Desk, state: str) -> None:
    name = desk.sub.dlq
    if state == "missing":
        await desk.sub.js.delete_stream(name)
    else:
        config = (await desk.sub.js.stream_info(name)).config
        limits = {"max_msgs": 1, "discard": "new"} if state == "full" else {"sealed": True}
        await put(desk, b"x")
        await desk.sub.js.update_stream(config.evolve(**limits))
    message_id = await received(desk)
    assert await desk.sub.process(Handler.answering(422)).process(message_id) is not None
    incident = await real(desk, message_id)
    assert incident["status"] == "open"
    assert [fact.message_id for fact in desk.sub.facts if isinstance(fact, DeadLetterDelayed)] == [message_id]
    row = await desk.sub.row(message_id)
    assert (row["dead_letter_reason"], row["dead_lettered_at"]) == ("HTTP 422: why", None)


async def test_a_key_goes_on_if_its_incident_is_closed_before_its_letter_is_stored(desk: Desk) -> None:
    desk.sub.keep_order("block")
    await desk.sub.js.delete_stream(desk.sub.dlq)
    first, second = [await desk.sub.received(Relay_Partition_Key="k") for _ in range(2)]
    process = desk.sub.process(Handler.answering(422, 200))
    await process.process(first)
    incident = await real(desk, first)
    await desk.incidents.discard([incident["id"]], ANN)
    await desk.sub.create_dlq()
    await desk.sub.query("UPDATE inbox_messages SET next_attempt_at = now() - interval '1 s'")
    await process.process(first)
    assert (await desk.sub.row(first))["stepped_over"]
    await process.process(second)
    assert (await desk.sub.row(second))["processed_at"] is not None


# --- letters that die ---


@dataclass
class Reader:
    """A subscription of the same context on a stream of letters."""

    sub: Subscription
    stream: str


async def reading(desk: Desk, stream: str, filter_subject: str) -> Subscription:
    """A subscription of the same context on another stream."""
    sub = desk.sub
    other = replace(sub, name=stream.lower(), facts=[], enqueued=[])
    for part in ("pool", "inbox", "nats", "publisher", "js"):
        setattr(other, part, getattr(sub, part))
    other.consumer = NatsJetStreamConsumer(sub.nats, stream=other.stream, durable="down")
    await other.create_durable(filter_subject=filter_subject)
    return other


async def copied(desk: Desk, **config: Any) -> str:
    """A stream with copies of the letters."""
    name = f"{desk.sub.context}_COPY".upper()
    await desk.sub.js.add_stream(StreamConfig(name=name, **config))
    return name


async def count(desk: Desk, stream: str) -> int:
    return int((await desk.sub.js.stream_info(stream)).state.messages)


async def die_out(desk: Desk, reader: Subscription, rounds: int = 4) -> int:
    """Let all that a subscription gets die, and whatever comes of it; returns how many messages died."""
    died = 0
    for _ in range(rounds):
        before = len(reader.enqueued)
        await reader.pull(envelope="raw").accept(await reader.fetch())
        for id in reader.enqueued[before:]:
            await reader.process(Handler.answering(422), envelope="raw").process(id)
            died += 1
    return died


@pytest.mark.parametrize("filter_subject", ["{context}.dlq.>", ">", "*.dlq.>", "{context}.>"])
async def test_a_letter_that_dies_is_an_incident_and_no_letter(desk: Desk, filter_subject: str) -> None:
    letters = [await desk.died(422) for _ in range(3)]
    reader = await reading(desk, desk.sub.dlq, filter_subject.format(context=desk.sub.context))
    assert await die_out(desk, reader) == 3
    assert await count(desk, desk.sub.dlq) == 3
    assert len([fact for fact in reader.facts if isinstance(fact, MessageDeadLettered)]) == 3
    rows = await desk.rows()
    assert {row["stream"] for row in rows} == {desk.sub.dlq}
    assert len(rows) == 3
    await desk.record().run()
    for id in letters:
        await real(desk, id)
    assert len(await desk.rows()) == 6


@pytest.mark.parametrize("envelope", ["handler", "message-envelope", "cloudevents", "raw"])
async def test_a_subscription_gets_each_letter_of_its_own_context(desk: Desk, envelope: str) -> None:
    """Whatever its envelope is: a letter has one form, and an id of its own beside that of the message."""
    died = [str(await desk.died(422)) for _ in range(3)]
    reader = await reading(desk, desk.sub.dlq, f"{desk.sub.context}.dlq.>")
    handler = Handler()
    await reader.pull(envelope=envelope).accept(await reader.fetch())
    for id in reader.enqueued:
        await reader.process(handler, envelope=envelope).process(id)
    told = [json.loads(it.body) for it in handler.requests]
    assert [it["payload"]["message_id"] for it in told] == died
    assert [it["message_id"] for it in told] == [own_id(desk, UUID(id)) for id in died]
    if envelope != "raw":
        assert {(it["event_type"], it["event_version"]) for it in told} == {("message_dead_lettered", 1)}
        assert [it["causation_id"] for it in told] == died
    assert await desk.record().run() == 3
    assert len(await desk.rows()) == 3


async def test_letters_that_nobody_can_read_do_not_multiply(desk: Desk) -> None:
    """Foreign messages among the letters: each of them is dead on arrival."""
    for n in range(3):
        await put(desk, b"no JSON" if n else b"{}", **{LETTER: desk.sub.context})
    reader = await reading(desk, desk.sub.dlq, f"{desk.sub.context}.dlq.>")
    for _ in range(3):
        await reader.pull(envelope="message-envelope").accept(await reader.fetch())
        for id in reader.enqueued:
            await reader.process(Handler(), envelope="message-envelope").process(id)
    assert await count(desk, desk.sub.dlq) == 3
    assert [row["dead_lettered_at"] is not None for row in await desk.sub.rows()] == [True] * 3


@pytest.mark.parametrize("transformed", [False, True])
async def test_a_letter_is_recognised_in_a_copy_of_its_stream(desk: Desk, transformed: bool) -> None:
    await desk.died(422)
    from nats.js.api import StreamSource, SubjectTransform

    moves = [SubjectTransform(src=">", dest="elsewhere.>")] if transformed else None
    name = await copied(desk, sources=[StreamSource(name=desk.sub.dlq, subject_transforms=moves)])
    reader = await reading(desk, name, ">")
    assert await die_out(desk, reader) == 1
    assert await count(desk, desk.sub.dlq) == 1


@pytest.mark.parametrize("kept", ["headers", "body", "body in an event", "header in small letters"])
async def test_a_letter_that_a_handler_publishes_again_is_recognised(desk: Desk, kept: str) -> None:
    await desk.died(422)
    [letter] = [await desk.sub.js.get_msg(desk.sub.dlq, 1)]
    headers: dict[str, str] = {}
    body = b'{"any": 1}' if kept.startswith("header") else letter.data
    if kept == "headers":
        headers = {name: value for name, value in letter.headers.items() if name != "Nats-Expected-Stream"}
    elif kept == "header in small letters":
        headers = {LETTER.lower(): desk.sub.context}
    elif kept == "body in an event":
        body = json.dumps({"event_type": "a", "event_version": 1, "payload": json.loads(letter.data)}).encode()
    await desk.sub.send(body, **{name.replace("-", "_"): value for name, value in headers.items()})
    sub = desk.sub
    sub.enqueued.clear()
    assert await die_out(desk, sub) == 1
    assert await count(desk, sub.dlq) == 1


async def test_two_contexts_that_read_each_others_letters_stop_with_the_first(desk: Desk) -> None:
    """What the other context's letters become in this one; see also tests/acceptance/test_letters.py."""
    theirs = f"their{desk.sub.context}"
    await desk.sub.js.add_stream(StreamConfig(name=theirs.upper(), subjects=[f"{theirs}.dlq.>"]))
    await desk.sub.js.publish(f"{theirs}.dlq.a.event.b.v1", forged(uuid4()))
    reader = await reading(desk, theirs.upper(), ">")
    assert await die_out(desk, reader) == 1
    assert await count(desk, desk.sub.dlq) == 0
    assert len(await desk.rows()) == 1


async def test_a_requeued_letter_that_dies_again_is_another_incident_and_no_letter(desk: Desk) -> None:
    await desk.died(422)
    reader = await reading(desk, desk.sub.dlq, f"{desk.sub.context}.dlq.>")
    await die_out(desk, reader)
    for _ in range(3):
        [*_, last] = await desk.rows()
        assert (await desk.incidents.requeue([last["id"]], ANN)).done
        await reader.process(Handler.answering(422), envelope="raw").process(last["message_id"])
    assert [row["occurrence"] for row in await desk.rows()] == [1, 2, 3, 4]
    assert await count(desk, desk.sub.dlq) == 1


async def test_an_ordinary_message_in_a_stream_with_letters_still_has_its_letter(desk: Desk) -> None:
    await desk.died(422, payload={"reason": "x", "original_subject": "y"})
    assert await count(desk, desk.sub.dlq) == 1


_ = NatsJetStreamPublisher
