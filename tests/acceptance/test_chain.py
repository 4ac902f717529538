"""One chain through two services (building blocks §4.2): the same correlation and trace everywhere, at each step
its cause, and the spans of it.

HTTP request → command → domain event → integration event → stream → subscriber → command → domain event →
integration event and task, and every log line on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from relay import Event, Outbox
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import (
    AggregateRoot,
    Command,
    CommandBus,
    DomainEvent,
    DomainEventBus,
    RequestContextMiddleware,
    TransactionalCommandBus,
    UnitOfWork,
)
from relay.domain.traceparent import Trace
from tests.acceptance import chain_search
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HANDLER = "python:tests.acceptance.chain_search"


class Created(DomainEvent):
    title: str


class Create(Command[None]):
    title: str


class Vibe(AggregateRoot):
    pass


class Producer:
    """The first service. ``happened`` are its domain events."""

    def __init__(self, engine: Engine) -> None:
        self.happened: list[Created] = []
        self.commands, events = CommandBus(), DomainEventBus()
        self.commands.handles(Create)(self.create)
        events.on(Created)(self.tell)
        self.bus = TransactionalCommandBus(
            self.commands, SqlAlchemyUnits(engine, outbox=Outbox("vibespro")), events
        )
        api = FastAPI()
        api.post("/vibes", status_code=204)(self.post)
        self.client = TestClient(RequestContextMiddleware(api))

    def post(self, command: Create) -> None:
        self.bus.dispatch(command).unwrap()

    def create(self, command: Create, unit: UnitOfWork[Session]) -> None:
        unit.track(Vibe()).record(Created(title=command.title))

    def tell(self, created: Created, unit: UnitOfWork[Session]) -> None:
        self.happened.append(created)
        payload = {"title": created.title}
        unit.publish(Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id="1", payload=payload))


@pytest.fixture
def fleet(start_fleet: Callable[..., Fleet], tmp_path: Path) -> Fleet:
    # No span is sent before its process ends: so all that are found were sent then.
    spans = {"RELAY_TRACING__EXPORTER": "tests.acceptance.chain_search:SpansInFiles", "SPANS": str(tmp_path)}
    fleet = start_fleet(handler=HANDLER, variables={**spans, "OTEL_BSP_SCHEDULE_DELAY": "3600000"})
    fleet.query("sea", chain_search.TABLE)
    fleet.scheduler()
    return fleet


@pytest.fixture
def producer(fleet: Fleet) -> Iterator[Producer]:
    engine = create_engine(fleet.urls["vibespro"].replace("postgresql://", "postgresql+psycopg://"))
    yield Producer(engine)
    engine.dispose()


def test_one_chain_through_two_services(fleet: Fleet, producer: Producer, tmp_path: Path) -> None:
    worker, correlation = fleet.worker(), uuid4()
    headers = {"X-Correlation-ID": str(correlation), "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    assert producer.client.post("/vibes", json={"title": "dusk"}, headers=headers).status_code == 204
    wait_for("the task is completed", lambda: lines(fleet, "warmed up"))

    [created] = producer.happened
    [sent] = ids(fleet, "vibespro", "outbox_events")
    assert sent[1:] == (correlation, created.id)

    [message] = fleet.messages("VIBESPRO_EVENTS")
    body = json.loads(message.data)
    assert (body["correlation_id"], body["causation_id"]) == (str(correlation), str(created.id))

    assert fleet.inbox(sent[0])["correlation_id"] == correlation
    [(indexed,)] = fleet.query("sea", "SELECT event_id FROM entries")
    [answered] = ids(fleet, "sea", "outbox_events")
    [task] = ids(fleet, "sea", "task_outbox")
    assert answered[1:] == (correlation, indexed)
    assert task[1:] == (correlation, indexed)

    [begun] = fleet.query("vibespro", "SELECT headers ->> 'traceparent' FROM outbox_events")
    [followed] = fleet.query("sea", "SELECT headers ->> 'traceparent' FROM outbox_events")
    [asked] = fleet.query("sea", "SELECT metadata ->> 'traceparent' FROM task_outbox")
    traces = [trace for (value,) in (begun, followed, asked) if (trace := Trace.parse(value))]
    assert message.headers["traceparent"] == begun[0]
    assert [trace.trace_id for trace in traces] == [TRACE] * 3
    assert len({trace.span_id for trace in traces} | {"00f067aa0ba902b7"}) == 4

    causes = {"received": sent[0], "indexed": sent[0], "announced": indexed, "warmed up": task[0]}
    for event, cause in causes.items():
        [line] = lines(fleet, event)
        assert (line["correlation_id"], line["causation_id"]) == (str(correlation), str(cause)), event
        assert line["trace_id"] == TRACE

    assert fleet.stop(worker) == 0
    assert tree(tmp_path) == {
        "process from_vibespro": traces[0].span_id,
        "create vibe_indexed": "process from_vibespro",
        "create warm_up": "process from_vibespro",
        "process warm_up": "create warm_up",
        "send vibespro": [traces[0].span_id],
        "send sea": ["create vibe_indexed"],
        "receive from_vibespro": [traces[0].span_id],
    }


def tree(spans: Path) -> dict[str, Any]:
    """The spans of all processes by name: the parent of each, or what a batch is linked to, by name if known."""
    found = [json.loads(line) for file in spans.glob("*.spans") for line in file.read_text().splitlines()]
    names = {it["span"]: it["name"] for it in found}
    links = {it["name"]: [names.get(id, id) for id in it["links"]] for it in found}
    return {it["name"]: links[it["name"]] or names.get(it["parent"], it["parent"]) for it in found}


def ids(fleet: Fleet, context: str, table: str) -> list[tuple[UUID, UUID, UUID]]:
    return fleet.query(context, f"SELECT id, correlation_id, causation_id FROM {table}")


def lines(fleet: Fleet, event: str) -> list[dict[str, Any]]:
    """What the second service logged."""
    read = [json.loads(line) for line in fleet.log("worker").splitlines() if line.startswith("{")]
    return [line for line in read if line.get("logger") == "chain" and line["event"] == event]
