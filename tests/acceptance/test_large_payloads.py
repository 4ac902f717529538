"""Large payloads in a fleet: handlers get them whole and in order; an outage of the producer harms nothing."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

import nats
import psycopg
import pytest

from relay import Event, Outbox
from relay.domain.limits import PAYLOAD
from tests.acceptance import large_effects, personal_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.large_effects import digest
from tests.acceptance.test_personal import ARCHIVE
from tests.integration.personal_support import VARIABLES, is_hidden, order, payload, tables_hide
from tests.waiting import wait_for

MB = 1024**2
PYTHON = "python:tests.acceptance.large_effects"
ALONE = "python:tests.acceptance.large_effect_alone"
SUBSCRIPTION = """
[contexts.sea.subscriptions.{name}]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "{handler}"
handler_timeout = "60s"
{more}
"""
PRODUCER = """
[contexts.vibespro]
payload_limit = "256KB"
[contexts.vibespro.stream]
name = "VIBESPRO_EVENTS"
subjects = ["vibespro.event.>"]
"""
CONSUMER = "[contexts.sea]" + SUBSCRIPTION.format(name="from_vibespro", handler=ALONE, more="")


def text(size: int, seed: int = 1) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


def drawn(size: int, seed: int = 1) -> Event:
    payload = {"text": text(size, seed)}
    return Event(event_type="drawn", aggregate_type="picture", aggregate_id="p-1", payload=payload)


@dataclass
class Apart(Fleet):
    """Two services that share nothing but NATS: each process belongs to the one whose turn it is."""

    turn: str = ""

    def configuration(self) -> str:
        for name, written in (("vibespro", PRODUCER), ("sea", CONSUMER)):
            (self.directory / f"{name}.toml").write_text(written)
        return PRODUCER + CONSUMER

    @property
    def environment(self) -> dict[str, str]:
        found = super().environment
        if not self.turn:
            return found
        other = {"sea": "VIBESPRO", "vibespro": "SEA"}[self.turn]
        kept = {name: value for name, value in found.items() if f"__{other}__" not in name}
        return {
            **kept,
            "RELAY_CONFIG": str(self.directory / f"{self.turn}.toml"),
            "RELAY_REDIS_NAMESPACE": self.turn,
            "RELAY_PAYLOADS__DIRECTORY": str(self.files(self.turn)),
        }

    def files(self, context: str) -> Path:
        return self.directory / f"payloads-{context}"

    def of(self, context: str) -> Apart:
        self.turn = context
        return self


@pytest.fixture
def apart(server_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apart]:
    with Apart(server_directory) as fleet:
        monkeypatch.setenv("RELAY_CONFIG", str(fleet.directory / "vibespro.toml"))
        fleet.query("sea", large_effects.TABLE)
        fleet.of("vibespro").scheduler()
        fleet.of("sea").scheduler()
        yield fleet


def commit(fleet: Fleet, *events: Event) -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        return [str(id) for id in Outbox("vibespro").add_many(connection, events)]


def published(fleet: Fleet, count: int) -> list[Any]:
    wait_for("all are published", lambda: len(fleet.messages("VIBESPRO_EVENTS")) == count, 120)
    return fleet.messages("VIBESPRO_EVENTS")


def seen(fleet: Fleet, subscription: str) -> list[tuple[str, int]]:
    sql = "SELECT message_id, size FROM seen WHERE subscription = %s ORDER BY id"
    return fleet.query("sea", sql, subscription)


def waits_with(fleet: Fleet, code: str) -> Callable[[], bool]:
    sql = f"SELECT count(*) FROM inbox_messages WHERE attempts = 0 AND last_error LIKE '{code}%%'"
    return lambda: fleet.query("sea", sql) == [(1,)]


# --- every kind of handler ---


def test_every_kind_of_handler_gets_all_of_it_in_order(
    start_fleet: Callable[..., Fleet], handler: HandlerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [
        ("on_loop", PYTHON, ""),
        ("in_chunks", PYTHON, "chunk = 50"),
        ("in_order", PYTHON, 'order = "key"'),
        ("service", f"http://127.0.0.1:{handler.port}/service", 'order = "key"'),
    ]
    more = "".join(SUBSCRIPTION.format(name=name, handler=it, more=extra) for name, it, extra in wanted)
    limit = {"RELAY_CONTEXTS__VIBESPRO__PAYLOAD_LIMIT": "256KB"}
    fleet = start_fleet(handler=PYTHON, handler_timeout="60s", more=more, variables=limit)
    for name, value in (("RELAY_CONFIG", str(fleet.directory / "relay.toml")), *limit.items()):
        monkeypatch.setenv(name, value)
    fleet.query("sea", large_effects.TABLE)
    sizes = [100, MB, 10 * MB, 200, 64 * MB - 100, 300]
    events = [drawn(size, number) for number, size in enumerate(sizes)]
    ids = commit(fleet, *events)
    fleet.scheduler()
    fleet.worker()
    messages = published(fleet, len(ids))
    assert [PAYLOAD in it.headers for it in messages] == [size > MB // 4 for size in sizes]

    everywhere = ["from_vibespro", "on_loop", "in_chunks", "in_order"]
    wait_for("all are handled", lambda: [len(seen(fleet, it)) for it in everywhere] == [len(ids)] * 4, 240)
    wait_for("the service has all", lambda: all(handler.count(id) for id in ids), 240)
    assert seen(fleet, "in_order") == list(zip(ids, sizes, strict=True))
    expected = {id: digest(it.payload["text"]) for id, it in zip(ids, events, strict=True)}
    rows = fleet.query("sea", "SELECT message_id, digest FROM seen")
    assert all(expected[id] == found for id, found in rows)
    calls = [call.body for call in handler.calls]
    assert [(it["message_id"], digest(it["payload"]["text"])) for it in calls] == list(expected.items())
    # The inbox keeps the reference.
    [(largest,)] = fleet.query("sea", "SELECT max(octet_length(body)) FROM inbox_messages")
    assert largest < 2_000
    assert "64.0 MB, in the outbox of vibespro" in fleet.relay("explain", ids[4], "--json")


# --- a person, and the archive ---


def order_with(picture: str, subject: str) -> Event:
    return order(subject, payload=payload(subject, picture=picture))


def test_a_large_event_about_a_person_is_hidden_forgotten_archived_and_replayed(
    start_fleet: Callable[..., Fleet],
    handler: HandlerService,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Rows, messages, files of fetched payloads and the archive show nothing of the person."""
    directories = {name: tmp_path / name for name in ("fetched", "cold")}
    for directory in directories.values():
        directory.mkdir(mode=0o700)
    variables = {
        **VARIABLES,
        "RELAY_CONTEXTS__VIBESPRO__PAYLOAD_LIMIT": "256KB",
        "RELAY_PAYLOADS__DIRECTORY": str(directories["fetched"]),
    }
    effects, service = "python:tests.acceptance.personal_effects", f"http://127.0.0.1:{handler.port}/service"
    wanted = [
        ("on_loop", effects, ""),
        ("in_chunks", effects, "chunk = 50"),
        ("skips", effects, 'forgotten = "skip"'),
        ("refuses", effects, 'forgotten = "dead"'),
        ("service", service, 'personal = "plain"'),
    ]
    more = "".join(SUBSCRIPTION.format(name=name, handler=it, more=extra) for name, it, extra in wanted)
    more += ARCHIVE.format(name="vibespro", directory=directories["cold"])
    fleet = start_fleet(handler=effects, handler_timeout="60s", more=more, variables=variables)
    for name, value in (("RELAY_CONFIG", str(fleet.directory / "relay.toml")), *variables.items()):
        monkeypatch.setenv(name, value)
    fleet.query("sea", personal_effects.TABLE)
    fleet.scheduler()
    worker = fleet.worker()

    def handled(id: str) -> dict[str, str]:
        return dict(fleet.query("sea", "SELECT subscription, digest FROM seen WHERE message_id = %s", id))

    def is_over(id: str, count: int = 5) -> bool:
        return (len(handled(id)), handler.count(id)) == (count, 1)

    pictures = [text(2 * MB, number) for number in range(3)]
    ids = commit(fleet, order_with(pictures[0], "c-7"), order_with(pictures[1], "c-8"))
    wait_for("both are handled", lambda: all(map(is_over, ids)), 120)
    known = [payload("c-7", picture=pictures[0]), payload("c-8", picture=pictures[1])]
    for id, it in zip(ids, known, strict=True):
        assert set(handled(id).values()) == {personal_effects.digest(it)}
    assert [handler.calls_for(id)[0].body["payload"] for id in ids] == known
    assert [PAYLOAD in it.headers for it in fleet.messages("VIBESPRO_EVENTS")] == [True, True]

    fleet.stop(worker)
    [late] = commit(fleet, order_with(pictures[2], "c-7"))
    fleet.relay("forget", "c-7", "--yes")
    fleet.worker()
    wait_for("it is handled", lambda: is_over(late, 3), 120)
    dead = "SELECT subscription FROM inbox_messages WHERE dead_lettered_at IS NOT NULL"
    wait_for("it is dead where it is refused", lambda: fleet.query("sea", dead) == [("refuses",)], 120)
    nulls = {"email": None, "address": {"street": None, "city": None}}
    assert set(handled(late).values()) == {personal_effects.digest(payload("c-7", picture=pictures[2]) | nulls)}

    fleet.query("vibespro", "UPDATE outbox_events SET published_at = published_at - interval '9 days'")
    fleet.relay("archive", "run")
    assert fleet.query("vibespro", "SELECT count(*) FROM outbox_events") == [(0,)]
    fleet.relay("archive", "verify")
    packed = [gzip.decompress(it.read_bytes()) for it in directories["cold"].rglob("*.gz")]
    fetched = [it.read_bytes() for it in directories["fetched"].iterdir()]
    assert all(any(it.encode() in file for file in packed) for it in pictures)
    assert len(fetched) == 3
    assert all(map(is_hidden, [*packed, *fetched, *(it.data for it in fleet.messages("VIBESPRO_EVENTS"))]))
    assert all(map(tables_hide, fleet.urls.values()))

    # It comes back as a reference, and a subscription that lacks it gets what was archived.
    for path in directories["fetched"].iterdir():
        path.unlink()
    fleet.query("sea", "DELETE FROM inbox_messages WHERE subscription = 'service'")
    fleet.relay("archive", "replay", ids[1], "--context", "vibespro", "--yes")
    wait_for("it is handled again", lambda: len(handler.calls) == 4, 120)
    assert handler.calls[-1].body["payload"] == known[1]
    assert [PAYLOAD in it.headers for it in fleet.messages("VIBESPRO_EVENTS")] == [True] * 4


# --- outages ---


def test_while_the_producer_is_away_its_message_waits(apart: Apart) -> None:
    fleet = apart
    producer = fleet.of("vibespro").worker()
    [id] = commit(fleet, drawn(10 * MB))
    published(fleet, 1)
    fleet.stop(producer)
    fleet.of("sea").worker()
    wait_for("it waits for its payload", waits_with(fleet, "PAYLOAD_UNREACHABLE"), 120)
    assert seen(fleet, "alone") == []
    fleet.of("vibespro").worker()
    wait_for("it is handled", lambda: seen(fleet, "alone") == [(id, 10 * MB)], 120)


def test_content_that_was_changed_waits_until_it_is_right_again(apart: Apart) -> None:
    fleet = apart
    fleet.of("vibespro").worker()
    [id] = commit(fleet, drawn(MB))
    published(fleet, 1)
    fleet.query("vibespro", "CREATE TABLE kept AS SELECT payload FROM outbox_events")
    fleet.query("vibespro", """UPDATE outbox_events SET payload = '{"text": "other"}'""")
    fleet.of("sea").worker()
    wait_for("it waits", waits_with(fleet, "PAYLOAD_DAMAGED"), 120)
    fleet.query("vibespro", "UPDATE outbox_events SET payload = (SELECT payload FROM kept)")
    wait_for("it is handled", lambda: seen(fleet, "alone") == [(id, MB)], 120)


@contextmanager
def silent_after(fleet: Apart, content: bytes, pieces: int) -> Iterator[Flag]:
    """A producer that sends so many pieces of a payload and then nothing. The flag says that it is silent."""
    silent, over = Flag(), Flag()

    async def serve() -> None:
        client = await nats.connect(fleet.nats.url)

        async def answer(query: Any) -> None:
            asked = json.loads(query.data)
            begin = asked["offset"]
            if begin >= pieces * asked["length"]:
                silent.set()
            else:
                await query.respond(content[begin : begin + asked["length"]])

        async def here(look: Any) -> None:
            await look.respond(b"")

        await client.subscribe("relay.payloads.vibespro", cb=answer)
        await client.subscribe("_RELAY.PRESENT.relay.payloads.vibespro", cb=here)
        await asyncio.to_thread(over.wait)
        await client.close()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield silent
    finally:
        over.set()
        thread.join()


def test_a_worker_that_is_killed_while_a_payload_comes_leaves_it_to_another(apart: Apart) -> None:
    fleet = apart
    producer = fleet.of("vibespro").worker()
    [id] = commit(fleet, drawn(10 * MB))
    published(fleet, 1)
    fleet.stop(producer)
    [(content,)] = fleet.query("vibespro", "SELECT payload::text FROM outbox_events")
    with silent_after(fleet, content.encode(), 3) as silent:
        consumer = fleet.of("sea").worker()
        assert silent.wait(120)
        fleet.kill(consumer)
    [left] = fleet.files("sea").iterdir()
    assert left.suffix == ".part"
    assert seen(fleet, "alone") == []
    fleet.of("vibespro").worker()
    fleet.of("sea").worker()
    wait_for("it is handled", lambda: seen(fleet, "alone") == [(id, 10 * MB)], 120)
    whole = [it for it in fleet.files("sea").iterdir() if it.suffix != ".part"]
    assert [hashlib.sha256(it.read_bytes()).hexdigest() for it in whole] == [whole[0].name.rpartition(".")[2]]


# --- memory ---


def memory(pid: int) -> dict[str, int]:
    """The memory of the processes below one, in bytes: now, and at most since it was reset."""
    found = {"VmRSS": 0, "VmHWM": 0}
    for process in [pid, *children(pid)]:
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in found:
                    found[name] += int(value.split()[0]) * 1024
    return found


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [it for child in map(int, text.split()) for it in (child, *children(child))]


def test_an_event_of_50_mb_takes_less_than_four_times_its_size(apart: Apart) -> None:
    """In a worker of the consumer: some at once, each more than a process may hold beside another."""
    fleet, size = apart, 50 * MB
    fleet.of("vibespro").worker()
    consumer = fleet.of("sea").worker()
    commit(fleet, drawn(100))
    wait_for("a small one is handled", lambda: len(seen(fleet, "alone")) == 1, 120)
    for process in [consumer.pid, *children(consumer.pid)]:
        Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak begins anew
    before = memory(consumer.pid)["VmRSS"]
    commit(fleet, *(drawn(size, number) for number in range(3)))
    wait_for("all are handled", lambda: [it for _, it in seen(fleet, "alone")] == [100, *[size] * 3], 300)
    assert (memory(consumer.pid)["VmHWM"] - before) / size < 4
