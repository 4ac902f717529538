"""Bad input of each kind, in each wire profile: a dead letter that says why, and neighbours that fare well."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from relay import Event, InvalidEvent, Outbox
from relay.domain.identity import Identity
from tests.acceptance.profiles import NAMES, Played, ProfileFleet, played
from tests.waiting import wait_for

LONG = "7" * 10_000
ROBOT: dict[str, str | None] = {"Relay-Actor-Id": "hal", "Relay-Actor-Kind": "ROBOT"}


class Sent(NamedTuple):
    """A message as a stranger publishes it."""

    subject: str
    headers: dict[str, str]
    body: bytes

    def but(
        self, *, headers: dict[str, str | None] | None = None, body: bytes | None = None, **fields: Any
    ) -> Sent:
        """The same message with other headers (None: without), another body, or other fields (...: without)."""
        kept = {name: value for name, value in {**self.headers, **(headers or {})}.items() if value is not None}
        if fields:
            content = {**json.loads(self.body), **fields}
            body = json.dumps({name: value for name, value in content.items() if value is not ...}).encode()
        return Sent(self.subject, kept, self.body if body is None else body)


class Written(NamedTuple):
    """A good event as a producer gives it to the outbox."""

    event_type: str
    payload: dict[str, Any]
    topic: str | None = None


class Profile(NamedTuple):
    """A profile's good message under an id, and its bad ones with what is said of each."""

    good: Callable[[str], Sent]
    bad: Callable[[Callable[[], Sent]], dict[str, tuple[Sent, str]]]
    written: Written


def default(id: str) -> Sent:
    body = {"message_id": id, "event_type": "vibe_created", "event_version": 1, "payload": {"title": "a vibe"}}
    return Sent("vibespro.event.vibe_created.v1", {"Nats-Msg-Id": id}, json.dumps(body).encode())


def bad_default(good: Callable[[], Sent]) -> dict[str, tuple[Sent, str]]:
    return {
        "another envelope": (good().but(body=cloudevent("x").body), "event_type"),
        "another event": (good().but(event_type="loop_created"), "event_type"),
        "a version that is none": (good().but(event_version="1.0"), "event_version"),
        "a version of another subject": (good().but(event_version=2), "event_version"),
        "another id than the header's": (good().but(message_id=str(uuid4())), "message_id"),
        "an id of 10 KB": (good().but(headers={"Nats-Msg-Id": LONG}, message_id=LONG), "Nats-Msg-Id"),
        "an actor of another kind": (good().but(headers=ROBOT), "actor_kind"),
        "a payload of another shape": (good().but(payload={"title": 7}), "payload.title"),
        "no id": (good().but(headers={"Nats-Msg-Id": None}, message_id=...), "Nats-Msg-Id"),
        "nothing": (good().but(body=b""), "JSON"),
    }


def cloudevent(id: str) -> Sent:
    attributes = {"ce-specversion": "1.0", "ce-id": id, "ce-source": "/test", "ce-type": "order_placed"}
    body = json.dumps({"order_id": f"order-{id}", "cents": 7}).encode()
    return Sent("shop.event.order_placed.v1", {"Nats-Msg-Id": id, **attributes}, body)


def bad_cloudevents(good: Callable[[], Sent]) -> dict[str, tuple[Sent, str]]:
    return {
        "another envelope": (Sent(good().subject, *default(str(uuid4()))[1:]), "ce-specversion"),
        "another version": (good().but(headers={"ce-specversion": "0.3"}), "ce-specversion"),
        "no type": (good().but(headers={"ce-type": None}), "ce-type"),
        "an event that nobody handles": (good().but(headers={"ce-type": "order_lost"}), "order_lost"),
        "an id of 10 KB": (good().but(headers={"Nats-Msg-Id": LONG, "ce-id": LONG}), "Nats-Msg-Id"),
        "an actor of another kind": (good().but(headers=ROBOT), "actor_kind"),
        "a payload of another shape": (good().but(cents="many"), "payload.cents"),
        "no id": (good().but(headers={"Nats-Msg-Id": None, "ce-id": None}), "ce-id"),
        "nothing, which is an event without data": (good().but(body=b""), "at payload"),
        "a batch": (good().but(headers={"Content-Type": "application/cloudevents-batch+json"}), "Content-Type"),
    }


def envelope(id: str) -> Sent:
    key = f"sha256:{hashlib.sha256(id.encode()).hexdigest()}"
    body = {
        "schema_version": "1.0",
        "message_type": "LoopCreated",
        "message_id": id,
        "timestamp": "2024-01-15T14:30:00Z",
        "actor_id": "user_1",
        "actor_kind": "HUMAN",
        "payload": {"loop_id": "loop_1", "goal": "a goal"},
        "idempotency_key": key,
    }
    return Sent("sr.events.loop", {"Nats-Msg-Id": key}, json.dumps(body).encode())


def bad_sr(good: Callable[[], Sent]) -> dict[str, tuple[Sent, str]]:
    return {
        "another envelope": (Sent(good().subject, *default(str(uuid4()))[1:]), "schema_version"),
        "another version": (good().but(schema_version="9.0"), "schema_version"),
        "an actor of another kind": (good().but(actor_kind="ROBOT"), "actor_kind"),
        "no actor": (good().but(actor_id=...), "actor_id"),
        "no key": (good().but(idempotency_key=...), "idempotency_key"),
        "a time that is none": (good().but(timestamp="yesterday"), "timestamp"),
        "a payload that is no object": (good().but(payload=[]), "payload"),
        "an event that nobody handles": (good().but(message_type="LoopLost"), "LoopLost"),
        "an id of 10 KB": (good().but(message_id=LONG), "message_id"),
        "a key of 10 KB": (good().but(idempotency_key=LONG), "idempotency_key"),
        "a payload of another shape": (good().but(payload={"loop_id": 7, "goal": "a"}), "payload.loop_id"),
        "nothing": (good().but(body=b""), "JSON"),
    }


def payout(id: str) -> Sent:
    return Sent("payout.generated", {"Nats-Msg-Id": id}, b'{"payout_id": "p_001", "team_id": "t_555"}')


def bad_microdao(good: Callable[[], Sent]) -> dict[str, tuple[Sent, str]]:
    return {
        "another envelope": (good().but(body=envelope("evt_1").body), "payload.payout_id"),
        "a version that is none": (good().but(headers={"Relay-Event-Version": "1.0"}), "event_version"),
        "an actor of another kind": (good().but(headers=ROBOT), "actor_kind"),
        "a topic that nobody handles": (good()._replace(subject="payout.lost"), "payout_lost"),
        "an id of 10 KB": (good().but(headers={"Nats-Msg-Id": LONG}), "Nats-Msg-Id"),
        "a payload of another shape": (good().but(team_id=7), "payload.team_id"),
        "no id": (good().but(headers={"Nats-Msg-Id": None}), "Nats-Msg-Id"),
        "nothing": (good().but(body=b""), "JSON"),
    }


PROFILES = {
    "default": Profile(default, bad_default, Written("vibe_created", {"title": "a vibe"})),
    "cloudevents": Profile(cloudevent, bad_cloudevents, Written("order_placed", {"order_id": "o", "cents": 7})),
    "sr": Profile(envelope, bad_sr, Written("LoopCreated", {"loop_id": "loop_1", "goal": "a goal"})),
    "microdao": Profile(
        payout,
        bad_microdao,
        Written("payout_generated", {"payout_id": "p_001", "team_id": "t_555"}, "payout.generated"),
    ),
}


@pytest.fixture(scope="module")
def fleet(server_root: Path) -> Iterator[ProfileFleet]:
    """All profiles, with a scheduler and a worker."""
    directory = server_root / "bad-input"
    with ProfileFleet(directory) as fleet:
        fleet.scheduler()
        fleet.worker()
        yield fleet
    shutil.rmtree(directory, ignore_errors=True)


def publish(fleet: ProfileFleet, messages: list[Sent]) -> list[int]:
    """Publish messages in order; returns their places in the stream."""

    async def send(js: Any) -> list[int]:
        return [(await js.publish(it.subject, it.body, headers=it.headers)).seq for it in messages]

    found: list[int] = fleet.jetstream(send)
    return found


def incidents(fleet: ProfileFleet, one: Played) -> dict[int, str]:
    """What is said of each dead letter of a profile, by its place in the stream."""
    sql = "SELECT stream_seq, class || ': ' || reason FROM dead_letters"
    return {seq: reason for name in one.consumers for seq, reason in fleet.query(name, sql)}


def new_id(name: str) -> str:
    """An id as the profile's producers make them: UUIDs, or any text."""
    return f"evt_{uuid4().hex.upper()}" if name in ("sr", "microdao") else str(uuid4())


def test_every_profile_is_here() -> None:
    assert sorted(PROFILES) == sorted(NAMES)


@pytest.mark.parametrize("name", PROFILES)
def test_each_is_a_dead_letter_with_its_reason_and_the_neighbours_are_handled(
    fleet: ProfileFleet, name: str
) -> None:
    one, profile = played(name), PROFILES[name]
    bad = {
        **profile.bad(lambda: profile.good(new_id(name))),
        "no JSON": (profile.good(new_id(name)).but(body=b'{"'), "JSON"),
        "a list": (profile.good(new_id(name)).but(body=b"[]"), ""),
    }
    ids = [new_id(name) for _ in range(len(bad) + 1)]
    messages = [profile.good(ids[0])]
    for id, (message, _) in zip(ids[1:], bad.values(), strict=True):
        messages += [message, profile.good(id)]
    places = publish(fleet, messages)[1::2]
    wait_for("each bad one is an incident", lambda: set(places) <= incidents(fleet, one).keys())
    wait_for("all are acknowledged", lambda: fleet.waiting(one) == 0)
    said = incidents(fleet, one)
    assert {
        kind: said[place] for kind, place in zip(bad, places, strict=True) if bad[kind][1] not in said[place]
    } == {}
    assert {id: fleet.effects(one)[id] for id in ids} == dict.fromkeys(ids, 1)
    received, processed, dead = fleet.inbox_counts(one)
    assert received == processed + dead
    assert processed == sum(fleet.effects(one).values())


# --- what a producer may not write ---


def written(name: str, **changed: Any) -> Event:
    """The good event of a profile, with other values."""
    good = PROFILES[name].written
    fields = {"event_type": good.event_type, "payload": good.payload, "topic": good.topic, **changed}
    return Event(aggregate_type="bad", aggregate_id=new_id(name), **fields)


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "oversized": (lambda: {"payload": {"text": "x" * 2_000_000}}, "PAYLOAD_TOO_LARGE"),
    "no JSON": (lambda: {"payload": {"number": float("nan")}}, "INVALID_PAYLOAD"),
    "an id of 10 KB": (lambda: {"id": LONG}, "INVALID_KEY"),
    "an actor of another kind": (lambda: {"headers": ROBOT}, "INVALID_ACTOR"),
    "a version that is none": (lambda: {"event_version": 0}, "INVALID_SUBJECT"),
    "a stream that cannot be": (lambda: {"stream": "no stream"}, "INVALID_SUBJECT"),
}


@pytest.mark.parametrize("name", PROFILES)
def test_what_a_producer_may_not_write_is_refused_with_a_code(fleet: ProfileFleet, name: str) -> None:
    one = played(name)
    outbox = Outbox(one.producer.CONTEXT)
    codes = {}
    with psycopg.connect(fleet.urls[one.producer.CONTEXT]) as connection:
        before, after = new_id(name), new_id(name)
        outbox.add(connection, written(name, id=before))
        for kind, (changed, _) in REFUSED.items():
            with pytest.raises(InvalidEvent) as raised:
                outbox.add(connection, written(name, **changed()))
            codes[kind] = raised.value.code
        outbox.add(connection, written(name, id=after))
    assert codes == {kind: code for kind, (_, code) in REFUSED.items()}
    wait_for("the neighbours took effect", lambda: {before, after} <= fleet.effects(one).keys())


INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, topic, stream, originals)
VALUES (%s, 'bad', %s, %s, %s::jsonb, %s, %s, %s::jsonb)
"""
#: What nobody checks at the insert: rows by SQL, and the error that each gets.
UNCHECKED: dict[str, tuple[dict[str, Any], str]] = {
    "oversized": ({"payload": {"text": "x" * 2_000_000}}, "PAYLOAD_TOO_LARGE"),
    "an id of 10 KB": ({"originals": {"id": LONG}}, "INVALID_KEY"),
    "another stream": ({"stream": "ANOTHER_STREAM"}, "STREAM_MISMATCH"),
    "no stream": ({"topic": "nowhere.at.all"}, "FOREIGN_SUBJECT"),
}


@pytest.mark.parametrize("name", PROFILES)
def test_rows_that_sql_got_past_the_checks_are_marked_and_those_of_a_stream_can_be_mended(
    fleet: ProfileFleet, name: str
) -> None:
    one, good = played(name), PROFILES[name].written
    context = one.producer.CONTEXT

    def insert(**changed: Any) -> str:
        id = new_id(name)
        # A text that is no UUID stands in originals, and the row has any UUID.
        text = Identity.of(id).derived
        originals = {"id": id} if text else None
        row = {"payload": good.payload, "topic": good.topic, "stream": None, "originals": originals, **changed}
        kept, payload = row["originals"] and json.dumps(row["originals"]), json.dumps(row["payload"])
        uuid = uuid4() if text else id
        fleet.query(context, INSERT, uuid, id, good.event_type, payload, row["topic"], row["stream"], kept)
        return id

    ids = {kind: insert(**changed) for kind, (changed, _) in UNCHECKED.items()}
    neighbour = insert()
    wait_for("the neighbour took effect", lambda: fleet.effects(one)[neighbour] == 1)

    def errors() -> dict[str, str]:
        sql = "SELECT aggregate_id, publish_error FROM outbox_events WHERE publish_error IS NOT NULL"
        found = dict(fleet.query(context, sql))
        return {kind: found[id] for kind, id in ids.items() if id in found}

    told = wait_for("each bad row is marked", lambda: len(errors()) == len(ids) and errors())
    assert {kind: told[kind] for kind, (_, code) in UNCHECKED.items() if code not in told[kind]} == {}
    # An operator mends what is wrong with the streams, and tries again.
    fleet.query(context, "UPDATE outbox_events SET stream = NULL WHERE aggregate_id = %s", ids["another stream"])
    mend = "UPDATE outbox_events SET topic = %s WHERE aggregate_id = %s"
    fleet.query(context, mend, good.topic, ids["no stream"])
    for error in ("STREAM_", "FOREIGN_SUBJECT"):
        fleet.relay("outbox", "retry", "--context", context, "--error", error, "--yes")
    mended = {ids["another stream"], ids["no stream"]}
    wait_for("the mended ones took effect", lambda: mended <= fleet.effects(one).keys())
    assert not {ids["oversized"], ids["an id of 10 KB"]} & fleet.effects(one).keys()
