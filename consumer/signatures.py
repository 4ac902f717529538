"""The parameters that an event handler may declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from relay.domain.errors import InvalidHandler
from relay.execution import signatures
from relay.execution.signatures import Inject, Injectable, Signature, invalid, parameters

__all__ = ["IncomingEvent", "Inject", "MessageContext", "Signature", "read", "read_upcaster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingEvent:
    """A received event as its handler sees it. ``payload`` is parsed JSON.

    After an upcast, ``payload`` and ``event_version`` are in the handler's version.
    """

    message_id: UUID
    subject: str
    event_type: str
    event_version: int
    occurred_at: datetime | None
    correlation_id: UUID | None
    causation_id: UUID | None
    partition_key: str | None
    headers: Mapping[str, str]
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """The context of a handler's call. ``attempt`` counts from 1.

    ``correlation_id`` is the event's own; an event without one uses its message id. ``causation_id`` is the
    id of what caused the event, None when unknown.
    """

    message_id: UUID
    correlation_id: UUID
    causation_id: UUID | None
    attempt: int


_INJECTABLE: Final = Injectable({IncomingEvent: Inject.EVENT, MessageContext: Inject.CONTEXT})


def read(function: Callable[..., Any]) -> Signature:
    """Read a handler's signature. Raises InvalidHandler, which names the function and the wrong parameter."""
    return signatures.read(function, _INJECTABLE)


def read_upcaster(function: Callable[..., Any]) -> None:
    """Check an upcaster: a plain function from one payload to the next version. Raises InvalidHandler."""
    if not inspect.isfunction(function):
        raise InvalidHandler(f"{function!r} is not a function")
    if inspect.iscoroutinefunction(function) or len(parameters(function)) != 1:
        raise invalid(function, "must be a plain function of one parameter, the older payload")
