"""Projections of events and the execution of commands: an effect for each, under the id of its message."""

from __future__ import annotations

from typing import Final

import psycopg
from pydantic import BaseModel

from consumer.handlers import IncomingEvent, MessageContext, handles

TABLES: Final = "CREATE TABLE IF NOT EXISTS effects (id text NOT NULL, what text NOT NULL)"


class Loop(BaseModel):
    """What a projection needs of an event. Other fields are ignored (§7.3)."""

    loop_id: str
    goal: str


class Iteration(BaseModel):
    """What a command asks for."""

    loop_id: str


@handles("LoopCreated")
@handles("IterationStarted")
@handles("CandidateRegistered")
@handles("RunCompleted")
@handles("UserInvited")
def project(loop: Loop, event: IncomingEvent, context: MessageContext, connection: psycopg.Connection) -> None:
    """Write down who did what."""
    who = f"{context.actor.kind} {context.actor.id}" if context.actor else "nobody"
    _take_effect(connection, event, f"{event.event_type} of {loop.loop_id} by {who}")


@handles("iteration.start")
def start(iteration: Iteration, event: IncomingEvent, connection: psycopg.Connection) -> None:
    """Execute the command: the one handler that does."""
    _take_effect(connection, event, f"an iteration of {iteration.loop_id}")


def _take_effect(connection: psycopg.Connection, event: IncomingEvent, what: str) -> None:
    connection.execute("INSERT INTO effects (id, what) VALUES (%s, %s)", [str(event.message_id), what])
