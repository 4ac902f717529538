"""What Prometheus reads of a real fleet, against what the tables say."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.devstack.ports import free_port
from tasks import schedule
from tests.acceptance import task_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import OUTBOX, vibe
from tests.acceptance.task_effects import Job, plain
from tests.waiting import wait_for

SUB = {"context": "sea", "subscription": "from_vibespro"}
EVENTS, DEAD, RETRIED = 40, 3, 5

Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def ports() -> dict[str, int]:
    return {"worker": free_port(), "scheduler": free_port()}


@pytest.fixture
def fleet(start_fleet: Callable[..., Fleet], server_directory: Path, ports: dict[str, int]) -> Fleet:
    variables = {
        "RELAY_METRICS__WORKER": str(ports["worker"]),
        "RELAY_METRICS__SCHEDULER": str(ports["scheduler"]),
        "RELAY_METRICS__DIRECTORY": str(server_directory / "metrics"),
        "RELAY_METRICS__INTERVAL": "1s",
    }
    return start_fleet(variables=variables)


def scrape(port: int) -> Numbers:
    """Every sample by name and labels; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def probe(port: int, path: str) -> Any:
    """What a probe answers with status 200."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
        return json.loads(answer.read())


def value(numbers: Numbers, name: str, **labels: str) -> float | None:
    return numbers.get((f"jetrelay_{name}", frozenset(labels.items())))


def produce(fleet: Fleet, count: int) -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        return [str(id) for id in OUTBOX.add_many(connection, [vibe(f"v{n}") for n in range(count)])]


def count(fleet: Fleet, context: str, query: str) -> int:
    [(number,)] = fleet.query(context, f"SELECT count(*) FROM {query}")
    return int(number)


def test_two_worker_processes_count_what_the_tables_say(
    fleet: Fleet, handler: HandlerService, ports: dict[str, int]
) -> None:
    ids: list[str] = []
    handler.verdict = lambda body, n: _verdict(ids.index(body["message_id"]), n)
    ids += produce(fleet, EVENTS)
    fleet.scheduler()
    worker = fleet.worker(processes=2, threads=2)
    done = "inbox_messages WHERE processed_at IS NOT NULL OR dead_lettered_at IS NOT NULL"
    wait_for("every message has ended", lambda: count(fleet, "sea", done) == EVENTS)
    wait_for("the incidents are recorded", lambda: count(fleet, "sea", "dead_letters") == DEAD)

    def counted() -> Numbers | None:
        found = scrape(ports["worker"])
        recorded = value(found, "incidents_recorded_total", **SUB, **{"class": "poison"})
        return found if recorded == DEAD else None

    numbers = wait_for("the incidents are counted", counted)
    published = count(fleet, "vibespro", "outbox_events WHERE published_at IS NOT NULL")
    assert value(numbers, "events_published_total", context="vibespro") == published == EVENTS
    assert value(numbers, "messages_received_total", **SUB) == count(fleet, "sea", "inbox_messages")
    processed = count(fleet, "sea", "inbox_messages WHERE processed_at IS NOT NULL")
    assert value(numbers, "messages_processed_total", **SUB) == processed == EVENTS - DEAD
    assert value(numbers, "messages_retried_total", **SUB) == RETRIED
    assert value(numbers, "messages_dead_lettered_total", **SUB, **{"class": "poison"}) == DEAD
    assert value(numbers, "messages_dead_lettered_total", **SUB, **{"class": "deterministic"}) == 0
    [(calls,)] = fleet.query("sea", "SELECT sum(attempts) FROM inbox_messages")
    assert value(numbers, "handler_seconds_count", **SUB) == calls == len(handler.calls)
    assert (value(numbers, "publish_batch_seconds_sum", context="vibespro") or 0) > 0
    wait_for("their threads are told", lambda: value(scrape(ports["worker"]), "worker_threads") == 4)
    assert probe(ports["worker"], "healthz") == {"status": "ok"}
    ready = probe(ports["worker"], "readyz")
    assert [it["server"] for it in ready["servers"]] == ["nats", "redis", "postgresql vibespro", "postgresql sea"]
    assert ready["ready"]
    beating = [*(fleet.directory / "metrics").glob("workers-*/alive_*")]
    assert len(beating) == 2
    shared = [*(fleet.directory / "metrics").glob("workers-*/counter_*.db")]
    assert len(shared) == 2, "one file for each of the two processes"
    assert fleet.stop(worker) == 0
    wait_for("nobody answers for what has stopped", lambda: not scrape(ports["worker"]))


def _verdict(place: int, call: int) -> int:
    """The first are refused for good, the next fail once."""
    if place < DEAD:
        return 422
    return 500 if place < DEAD + RETRIED and call == 1 else 200


def test_the_leading_scheduler_tells_what_waits(fleet: Fleet, ports: dict[str, int]) -> None:
    """No worker runs: what is published by hand, or put into the tables, stays."""
    produce(fleet, 3)
    fleet.query("vibespro", "UPDATE outbox_events SET occurred_at = now() - interval '1 h'")
    fleet.scheduler()
    sampled(ports["scheduler"], "outbox_waiting", 0, context="sea")
    assert probe(ports["scheduler"], "healthz") == {"status": "ok"}
    assert probe(ports["scheduler"], "readyz")["ready"]
    numbers = sampled(ports["scheduler"], "outbox_waiting", 3, context="vibespro")
    age = value(numbers, "outbox_oldest_age_seconds", context="vibespro")
    assert age is not None
    assert 3600 <= age < 3700
    assert value(numbers, "inbox_waiting", **SUB) == 0
    assert value(numbers, "incidents_open", **SUB, **{"class": "exhausted"}) == 0
    assert value(numbers, "scheduler_leading", context="vibespro") == 1
    assert value(numbers, "leads_taken_total", context="vibespro") == 1
    fleet.query("vibespro", "UPDATE outbox_events SET dead_at = now()")
    numbers = sampled(ports["scheduler"], "outbox_waiting", 0, context="vibespro")
    assert value(numbers, "outbox_dead", context="vibespro") == 3


def sampled(port: int, name: str, wanted: float, **labels: str) -> Numbers:
    def look() -> Numbers | None:
        found = scrape(port)
        return found if value(found, name, **labels) == wanted else None

    found: Numbers = wait_for(f"{name} is {wanted:g}", look)
    return found


def test_a_command_that_was_killed_leaves_address_and_directory_to_the_next(
    fleet: Fleet, handler: HandlerService, ports: dict[str, int]
) -> None:
    fleet.scheduler()
    first = fleet.worker()
    produce(fleet, 1)
    sampled(ports["worker"], "messages_processed_total", 1, **SUB)
    left = fleet.directory / "metrics" / f"workers-{first.pid}"
    assert left.exists()
    first.kill()  # the command alone: its children are not told
    first.wait()
    try:
        fleet.worker()
        wait_for("the next one answers", lambda: not left.exists() and scrape(ports["worker"]))
        produce(fleet, 2)
        done = "inbox_messages WHERE processed_at IS NOT NULL"
        wait_for("the messages are handled", lambda: count(fleet, "sea", done) == 3)
    finally:
        fleet.signal(first, signal.SIGKILL)


def test_what_takes_the_address_does_not_take_the_work(fleet: Fleet, ports: dict[str, int]) -> None:
    with (
        socket.create_server(("127.0.0.1", ports["scheduler"])),
        socket.create_server(("127.0.0.1", ports["worker"])),
    ):
        fleet.scheduler()
        fleet.worker()
        produce(fleet, 2)
        done = "inbox_messages WHERE processed_at IS NOT NULL"
        wait_for("the messages are handled", lambda: count(fleet, "sea", done) == 2)
        for name in ("scheduler", "worker"):
            wait_for(f"the {name} says so", lambda name=name: "metrics cannot be read" in fleet.log(name))
    sampled(ports["worker"], "messages_processed_total", 2, **SUB)


def test_tasks_without_redis_are_counted_by_their_process(
    start_fleet: Callable[..., Fleet], ports: dict[str, int]
) -> None:
    modules = "tasks.actors,consumer.actors,tests.acceptance.task_effects"
    variables = {"RELAY_ACTOR_MODULES": modules, "RELAY_METRICS__TASKS": str(ports["worker"])}
    fleet = start_fleet(variables=variables)
    fleet.query("sea", task_effects.TABLE)
    fleet.task_worker()
    kind = {"context": "sea", "type": "plain"}
    sampled(ports["worker"], "tasks_completed_total", 0, **kind)
    with psycopg.connect(fleet.urls["sea"]) as connection:
        for n in range(3):
            schedule(connection, plain, Job(n=n))
    numbers = sampled(ports["worker"], "tasks_completed_total", 3, **kind)
    assert value(numbers, "task_seconds_count", **kind) == 3
    assert value(numbers, "tasks_delivered_total", context="sea") == 3
