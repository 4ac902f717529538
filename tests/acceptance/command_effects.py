"""Handlers of commands for `test_commands`: each notes what it has done, in the inbox transaction."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext, handles
from relay import command

TABLE = "CREATE TABLE effects (message_id uuid, iteration_id text, action text)"


@command("iteration.start", to="sea", aggregate_id="iteration_id")
class StartIteration(BaseModel):
    iteration_id: str


@command("iteration.complete", to="sea", version=2)
class CompleteIteration(BaseModel):
    iteration_id: str


@handles(StartIteration)
def start(command: StartIteration, session: Session, context: MessageContext) -> None:
    note(session, context, command.iteration_id, "start")


@handles(CompleteIteration)
def complete(command: CompleteIteration, session: Session, context: MessageContext) -> None:
    note(session, context, command.iteration_id, "complete")


def note(session: Session, context: MessageContext, iteration_id: str, action: str) -> None:
    values = {"message_id": context.message_id, "iteration_id": iteration_id, "action": action}
    session.execute(text("INSERT INTO effects VALUES (:message_id, :iteration_id, :action)"), values)
