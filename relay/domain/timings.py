"""Facts that say how long handlers took, whatever they answered."""

from __future__ import annotations

from dataclasses import dataclass

from relay.domain.facts import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerAnswered(Fact):
    """The handler of a subscription has answered for a message, or was given up, after ``seconds``."""

    subscription: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswered(Fact):
    """The handler of a type of tasks has answered, or was given up, after ``seconds``."""

    task_type: str
    seconds: float
