"""Large payloads in a fleet: handlers get them whole and in order; an outage of the producer harms nothing."""

from __future__ import annotations

import asyncio
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
from tests.acceptance import large_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.large_effects import digest
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
