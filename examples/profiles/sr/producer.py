"""The orchestrator: loops and what becomes of them, each row with its message in one transaction."""

from __future__ import annotations

from typing import Final

import psycopg
from pydantic import BaseModel

from relay import Event, Outbox, RequestContext, command
from relay.bus import Actor

CONTEXT: Final = "sr"
TABLES: Final = "CREATE TABLE IF NOT EXISTS loops (id text PRIMARY KEY, goal text NOT NULL)"
#: Some types of §4.1 of the contracts. The last one has no subject of its own: it goes to sr.events.other.
TYPES: Final = ("LoopCreated", "IterationStarted", "CandidateRegistered", "RunCompleted", "UserInvited")
COMMAND_EVERY: Final = 4

outbox = Outbox(CONTEXT, undeclared=True)


@command("iteration.start", to=CONTEXT, aggregate_id="loop_id")
class StartIteration(BaseModel):
    """Ask for the next iteration of a loop: sr.commands.iteration.start (§4.2)."""

    loop_id: str


def record(connection: psycopg.Connection, number: int) -> str:
    """Write a loop and an event or a command about it, and return the message's id. The caller commits."""
    loop_id, goal = f"loop_{number}", f"goal number {number}"
    connection.execute("INSERT INTO loops (id, goal) VALUES (%s, %s)", [loop_id, goal])
    # Who asked: the ids of a request and of an actor are text, as the contracts have them.
    request = RequestContext(correlation_id=f"req_{number}", actor=Actor(f"user_{number % 3}", "HUMAN"))
    with request.use():
        if number % COMMAND_EVERY == 0:
            return str(outbox.add(connection, StartIteration(loop_id=loop_id)))
        id = f"evt_{number:026}"
        event = Event(
            id=id,
            event_type=TYPES[number % len(TYPES)],
            aggregate_type="loop",
            aggregate_id=loop_id,
            payload={"loop_id": loop_id, "goal": goal},
        )
        outbox.add(connection, event)  # answers the UUID that stands for the id
        return id
