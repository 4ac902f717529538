"""The second service of the chain, as workers load it: a subscriber, a command, a domain event, a task."""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from pydantic import BaseModel
from sqlalchemy import Engine, Uuid, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from consumer.handlers import handles
from relay import Event, Outbox
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import (
    AggregateRoot,
    Command,
    CommandBus,
    DomainEvent,
    DomainEventBus,
    TransactionalCommandBus,
    UnitOfWork,
)
from relay.settings import load_settings
from tasks import schedule, task

TABLE = "CREATE TABLE entries (title text PRIMARY KEY, event_id uuid)"

log = logging.getLogger("chain")
commands, events = CommandBus(), DomainEventBus()
Unit = UnitOfWork[Session]


class Indexed(DomainEvent):
    title: str


class Base(DeclarativeBase):
    pass


class Entry(AggregateRoot, Base):
    __tablename__ = "entries"
    title: Mapped[str] = mapped_column(primary_key=True)
    event_id: Mapped[object] = mapped_column(Uuid)


class Index(Command[None]):
    title: str


class Vibe(BaseModel):
    title: str


@handles("vibe_created")
def vibe_created(vibe: Vibe, session: Session) -> None:
    log.info("received")
    bus().dispatch(Index(title=vibe.title), session=session).unwrap()


@commands.handles(Index)
def index(command: Index, unit: Unit) -> None:
    happened = Indexed(title=command.title)
    entry = Entry(title=command.title, event_id=happened.id)
    entry.record(happened)
    unit.save(entry)
    log.info("indexed")


@events.on(Indexed)
def announce(indexed: Indexed, unit: Unit) -> None:
    about = {"aggregate_type": "entry", "aggregate_id": indexed.title}
    unit.publish(Event(event_type="vibe_indexed", payload={}, **about))
    unit.schedule(warm_up, Vibe(title=indexed.title))
    log.info("announced")


@task("warm_up")
def warm_up(vibe: Vibe, session: Session) -> None:
    log.info("warmed up")


class SpansInFiles(SpanExporter):
    """Writes the spans of each process to a file of its own in ``SPANS``."""

    def export(self, spans: list[ReadableSpan]) -> SpanExportResult:
        with (Path(os.environ["SPANS"]) / f"{os.getpid()}.spans").open("a") as file:
            file.writelines(f"{json.dumps(shown(span))}\n" for span in spans)
        return SpanExportResult.SUCCESS


def shown(span: ReadableSpan) -> dict[str, object]:
    return {
        "name": span.name,
        "trace": f"{span.get_span_context().trace_id:032x}",
        "span": f"{span.get_span_context().span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [f"{link.context.span_id:016x}" for link in span.links],
    }


@cache
def bus() -> TransactionalCommandBus:
    return TransactionalCommandBus(
        commands, SqlAlchemyUnits(_engine(), outbox=Outbox("sea"), schedule=schedule), events
    )


def _engine() -> Engine:
    url = load_settings().contexts["sea"].database_url.get_secret_value()
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
