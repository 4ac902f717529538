"""A handler whose effects show their order, loaded by the workers of a test."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext, Poison, handles

#: ``broken``: the messages that are refused as long as they are named there.
TABLES = (
    "CREATE TABLE effects (id bigserial PRIMARY KEY, key text NOT NULL, n int NOT NULL)",
    "CREATE TABLE broken (key text NOT NULL, n int NOT NULL)",
)
_BROKEN = text("SELECT 1 FROM broken WHERE key = :key AND n = :n")
_INSERT = text("INSERT INTO effects (key, n) VALUES (:key, :n)")


class Step(BaseModel):
    """The n-th message of a key; fails, as if a service answered 503, so many times."""

    key: str
    n: int
    failures: int = 0


@handles("step_taken", version=1)
def take(step: Step, session: Session, context: MessageContext) -> None:
    names = {"key": step.key, "n": step.n}
    if context.attempt <= step.failures:
        raise RuntimeError("503, not now")
    if session.execute(_BROKEN, names).first():
        raise Poison("not as long as it is broken")
    session.execute(_INSERT, names)
