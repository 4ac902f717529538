"""Corrections: what an application does when a task has failed for good (building block 2.7).

@on_failed("send_welcome_email")
def note(task: FailedTask, session: Session) -> None: ...

The function runs once, in the transaction that ends the task as failed: what it writes, schedules or adds to the
outbox commits with that, or not at all. If it raises or takes too long, its writes are rolled back, the task is
failed all the same, and an alert of class ``failed_correction`` says why. It is not tried again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from relay.domain.identity import Id
from relay.domain.reasons import code_of
from relay.execution.calls import Function
from relay.execution.signatures import Inject, Injectable, read
from tasks.registry import TaskRegistry, registry

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """A task that has failed for good, after so many ``attempts``. ``payload`` is parsed JSON."""

    task_id: UUID
    task_type: str
    payload: Any
    reason: str
    attempts: int
    correlation_id: Id
    causation_id: Id | None
    metadata: Mapping[str, Any]

    @property
    def reason_code(self) -> str:
        """The code of the reason, as `relay tasks list` has it."""
        return code_of(self.reason)

    @classmethod
    def read(cls, payload: str, **values: Any) -> FailedTask:
        """Make one with the payload as it is stored; None if Python cannot read it."""
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            found = None
        return cls(payload=found, **values)


#: How long a correction may take. The claim of its task holds for longer.
TIME_LIMIT: Final = timedelta(seconds=10)

_INJECTABLE: Final = Injectable({FailedTask: Inject.EVENT})


def on_failed(
    task: str | Callable[..., Any], *, into: TaskRegistry = registry
) -> Callable[[Decorated], Decorated]:
    """Register the function to run when a task of a type has failed for good; it stays an ordinary function.

    ``task``: the type or the function of a task that is registered already. The first parameter is the
    `FailedTask`; others are injected by their type, as for a task. Raises UnknownTask, and InvalidHandler if the
    task has one.
    """
    handler = into.named(task)

    def register(function: Decorated) -> Decorated:
        into.correct(handler.type, Function(function, read(function, _INJECTABLE)))
        return function

    return register
