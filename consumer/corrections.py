"""Corrections: what an application does when a message has died (building block 2.4, "a corrective command").

    @on_dead_letter("vibe_created")
    def give_up(letter: DeadMessage, session: Session) -> None: ...

The function runs once in effect, in a transaction that notes in the incident that it has run: what it writes,
schedules or adds to the outbox commits with that, or not at all. The incident is recorded before, so that nothing
delays it. If the function raises or takes too long, its writes are rolled back, the incident says why, and an
alert of class ``failed_correction`` comes. It is not tried again; after the death of a worker it is.

It is for the subscriptions whose module registers it. For a service, name the subscription, and load the module
by ``actor_modules``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

from relay.domain.errors import InvalidHandler
from relay.domain.identity import Id
from relay.domain.reasons import code_of
from relay.events import registration_of
from relay.execution.calls import Function
from relay.execution.signatures import Inject, Injectable, read

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: How long a correction may take.
TIME_LIMIT: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message that has died, as its incident has it. ``body``: its bytes. ``kind``: the class of its letter."""

    incident_id: int
    message_id: Id
    occurrence: int
    subscription: str
    subject: str
    event_type: str | None
    kind: str
    reason: str
    attempts: int
    correlation_id: Id | None
    causation_id: Id | None
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def reason_code(self) -> str:
        """The code of the reason, as `relay dlq list` has it."""
        return code_of(self.reason)

    @property
    def content(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return None if self.body is None else json.loads(self.body)
        except (ValueError, RecursionError):
            return None


_INJECTABLE: Final = Injectable({DeadMessage: Inject.EVENT})


@dataclass(frozen=True, slots=True)
class Correction:
    """A registered function. Without ``subscription``: for those whose handlers are in its module."""

    function: Function
    event_type: str | None
    subscription: str | None

    @property
    def where(self) -> str:
        """The name of the function."""
        return f"{self.function.function.__module__}.{self.function.function.__qualname__}"

    def serves(self, subscription: str, module: str | None) -> bool:
        """Whether it is for dead letters of a subscription, whose Python handlers are in ``module``."""
        if self.subscription is not None:
            return self.subscription == subscription
        return module is not None and f"{self.function.function.__module__}.".startswith(f"{module}.")


@dataclass
class Corrections:
    """The corrections of a process."""

    found: list[Correction] = field(default_factory=list)

    def of(self, subscription: str, module: str | None) -> Sequence[Correction]:
        """Those of a subscription; the ones for a type of event come first."""
        fit = [it for it in self.found if it.serves(subscription, module)]
        return sorted(fit, key=lambda it: it.event_type is None)

    def check(self, subscriptions: Collection[tuple[str, str | None]]) -> None:
        """Raise InvalidHandler for a function that can never run: no subscription is its own.

        ``subscriptions``: the names of all, each with the module of its Python handlers.
        """
        for it in self.found:
            if not any(it.serves(name, module) for name, module in subscriptions):
                known = ", ".join(sorted({name for name, _ in subscriptions})) or "none"
                message = "can never run: no subscription has its dead letters"
                raise InvalidHandler(message, field=it.where, hint=f"name one, subscription=…; known: {known}")


#: What `on_dead_letter` registers.
corrections: Final = Corrections()


def on_dead_letter(
    kind: str | type | None = None, *, subscription: str | None = None, into: Corrections = corrections
) -> Callable[[Decorated], Decorated]:
    """Register the function to run when a message has died; it stays an ordinary function.

    ``kind``: only for this type of event, or class registered with ``@event``. ``subscription``: only for this
    one. The first parameter is the `DeadMessage`; a session or connection is injected by its type. Raises
    InvalidHandler.
    """
    if isinstance(kind, type):
        registration = registration_of(kind)
        if registration is None:
            raise InvalidHandler(f"{kind.__name__} is not registered", hint="decorate it with @event or @command")
        kind = registration.command or registration.event_type

    def register(function: Decorated) -> Decorated:
        made = Correction(Function(function, read(function, _INJECTABLE)), kind, subscription)
        same = [it for it in into.found if (it.event_type, it.subscription) == (kind, subscription)]
        for other in same:
            if subscription is not None or other.function.function.__module__ == function.__module__:
                raise InvalidHandler(f"{other.where} corrects these dead letters already", field=made.where)
        into.found.append(made)
        return function

    return register
