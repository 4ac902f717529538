"""Handlers and a task that do next to nothing, loaded by the workers of the benchmark."""

from __future__ import annotations

import socket
from typing import Final

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext, handles
from tasks import task

#: What `write` writes into.
EFFECTS: Final = "CREATE TABLE IF NOT EXISTS benchmark_effects (message_id uuid NOT NULL, n int NOT NULL)"
_INSERT: Final = text("INSERT INTO benchmark_effects (message_id, n) VALUES (:message_id, :n)")
_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class Thing(BaseModel):
    n: int
    text: str
    #: Somebody waits on this UDP port to hear that the handler was called.
    port: int | None = None


@handles("each")
@handles("chunked")
@handles("made")
def handle(thing: Thing, session: Session, context: MessageContext) -> None:
    """Take part in the inbox transaction and write nothing into it."""
    if thing.port is not None:
        _socket.sendto(str(context.message_id).encode(), ("127.0.0.1", thing.port))


@handles("writing")
def write(thing: Thing, session: Session, context: MessageContext) -> None:
    """Write a row in the inbox transaction."""
    session.execute(_INSERT, {"message_id": context.message_id, "n": thing.n})


@task("nothing")
def nothing(thing: Thing, session: Session) -> None:
    """Take part in the transaction that completes the task."""
