"""AggregateRoot: records what happens to it, until the unit of work asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from relay.bus.messages import DomainEvent

_KEY: Final = "_recorded_events"


class AggregateRoot:
    """To be mixed into an entity, one mapped by SQLAlchemy too: a loaded entity never ran ``__init__``.

    Saved aggregates are asked for their events when the command's handler has returned.
    """

    def record(self, event: DomainEvent) -> None:
        """Note that ``event`` has happened."""
        vars(self).setdefault(_KEY, []).append(event)

    def pull_events(self) -> Sequence[DomainEvent]:
        """Return what was recorded since the last call, and forget it."""
        events: Sequence[DomainEvent] = vars(self).pop(_KEY, ())
        return events
