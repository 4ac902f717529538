"""Facts that tell how long handlers took, for every answer."""

from __future__ import annotations

from dataclasses import dataclass

from relay.domain.facts import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerAnswered(Fact):
    """The handler of a subscription answered for a message, or the relay stopped waiting, after ``seconds``."""

    subscription: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswered(Fact):
    """The handler of a task type answered, or the relay stopped waiting, after ``seconds``."""

    task_type: str
    seconds: float
