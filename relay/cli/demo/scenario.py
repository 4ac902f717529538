"""The producer of the demo: a service that writes business rows, and an event for each in the same transaction."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

from pydantic import BaseModel
from sqlalchemy import DateTime, Engine, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from relay import Outbox, event
from relay.cli.demo.accounts import SampleVerdict

CONTEXT: Final = "vibespro"
#: One event in this many gets the verdict. `plan` makes sure that each verdict occurs at least once.
_ONE_IN: Final = {SampleVerdict.ALREADY: 50, SampleVerdict.POISON: 50, SampleVerdict.FLAKY: 40}
_MOST_IN_A_TRANSACTION: Final = 4
_ROLLED_BACK_SHARE: Final = 0.12
#: How long production takes, so that there is something to watch.
_SECONDS: Final = 8.0

outbox = Outbox(CONTEXT, undeclared=True)


class Base(DeclarativeBase):
    """The tables of the demo's business."""


class Vibe(Base):
    """A business row. ``event_id`` exists only for the demo's check."""

    __tablename__ = "vibes"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(Text)
    event_id: Mapped[UUID] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())


@event("vibe_created", version=1, aggregate_type="vibe", aggregate_id="vibe_id")
class VibeCreated(BaseModel):
    """The event for other services. ``verdict`` tells the sample handler how to answer."""

    vibe_id: UUID
    title: str
    verdict: SampleVerdict


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """One transaction to run: the verdicts of its events, and whether it ends in a rollback."""

    verdicts: tuple[SampleVerdict, ...]
    roll_back: bool = False


@dataclass(slots=True)
class ProducerRecord:
    """The producer's own record, filled while it works."""

    committed: dict[UUID, SampleVerdict] = field(default_factory=dict)
    rolled_back: set[UUID] = field(default_factory=set)


class ChangedMind(Exception):
    """Raised to roll back, after everything was written."""


def plan(events: int, seed: int = 47) -> list[PlannedTransaction]:
    """Spread ``events`` over transactions, with every verdict. Other transactions between them roll back."""
    chance = random.Random(seed)  # noqa: S311
    verdicts = [SampleVerdict.SLOW] + [
        verdict for verdict, n in _ONE_IN.items() for _ in range(max(1, events // n))
    ]
    verdicts += [SampleVerdict.OK] * (events - len(verdicts))
    chance.shuffle(verdicts)
    transactions = []
    while verdicts:
        size = chance.randint(1, _MOST_IN_A_TRANSACTION)
        transactions.append(PlannedTransaction(tuple(verdicts[:size])))
        del verdicts[:size]
        if not verdicts or chance.random() < _ROLLED_BACK_SHARE:
            transactions.append(
                PlannedTransaction((SampleVerdict.OK,) * chance.randint(1, _MOST_IN_A_TRANSACTION), roll_back=True)
            )
    return transactions


def produce(
    engine: Engine, transactions: Sequence[PlannedTransaction], production: ProducerRecord, stop: threading.Event
) -> None:
    """Run the transactions at an even pace."""
    for transaction in transactions:
        if stop.wait(_SECONDS / len(transactions)):
            return
        _run(engine, transaction, production)


def _run(engine: Engine, transaction: PlannedTransaction, production: ProducerRecord) -> None:
    written: dict[UUID, SampleVerdict] = {}
    try:
        with Session(engine) as session, session.begin():
            for verdict in transaction.verdicts:
                written[_create_vibe(session, verdict, at_once=transaction.roll_back)] = verdict
            if transaction.roll_back:
                raise ChangedMind  # noqa: TRY301 - the transaction is what has to see it
    except ChangedMind:
        production.rolled_back |= written.keys()
    else:
        production.committed |= written


def _create_vibe(session: Session, verdict: SampleVerdict, *, at_once: bool) -> UUID:
    """Write a vibe and its event. ``at_once``: before the commit, so that a rollback has something to undo."""
    vibe_id = uuid4()
    title = f"a vibe to be answered {verdict}"
    target = session.connection() if at_once else session
    event_id = outbox.add(target, VibeCreated(vibe_id=vibe_id, title=title, verdict=verdict))
    session.add(Vibe(id=vibe_id, title=title, event_id=event_id))
    if at_once:
        session.flush()
    return event_id
