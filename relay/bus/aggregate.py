"""AggregateRoot: records domain events until the unit of work takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from relay.bus.messages import DomainEvent

_KEY: Final = "_recorded_events"


class AggregateRoot:
    """A mix-in for entities. It needs no ``__init__``, which SQLAlchemy does not run for a loaded entity.

    The bus takes the events of saved aggregates after the command's handler has returned.
    """

    def record(self, event: DomainEvent) -> None:
        """Record that ``event`` has happened."""
        vars(self).setdefault(_KEY, []).append(event)

    def pull_events(self) -> Sequence[DomainEvent]:
        """Return the events recorded since the last call, and forget them."""
        events: Sequence[DomainEvent] = vars(self).pop(_KEY, ())
        return events
