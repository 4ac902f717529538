"""Handlers as an application has them, loaded by the workers of a test (``python:`` and this module)."""

from __future__ import annotations

import os
import signal
import threading

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext, Poison, handles
from relay import Event, Outbox

TABLE = "CREATE TABLE effects (message_id uuid NOT NULL, attempt int NOT NULL)"
INSERT = text("INSERT INTO effects (message_id, attempt) VALUES (:message_id, :attempt)")
OUTBOX = Outbox(os.environ.get("TESTS_OUTBOX", "sea"))  # one test gives the context another name


class Vibe(BaseModel):
    n: int
    crash: bool = False
    poison: bool = False
    hang: bool = False


def following(n: int) -> Event:
    return Event(event_type="vibe_counted", aggregate_type="count", aggregate_id=str(n % 5), payload={"n": n})


@handles("vibe_created", version=1)
def write(vibe: Vibe, session: Session, context: MessageContext) -> None:
    session.execute(INSERT, {"message_id": context.message_id, "attempt": context.attempt})
    if vibe.hang:
        threading.Event().wait()
    OUTBOX.add(session, following(vibe.n))
    if vibe.poison:
        raise Poison("not this one")
    if vibe.crash and context.attempt == 1:
        session.flush()
        os.kill(os.getpid(), signal.SIGKILL)


@handles("vibe_created", version=2)
async def write_async(vibe: Vibe, session: AsyncSession, context: MessageContext) -> None:
    await session.execute(INSERT, {"message_id": context.message_id, "attempt": context.attempt})
    await OUTBOX.add(session, following(vibe.n))
    if vibe.poison:
        raise Poison("not this one")
