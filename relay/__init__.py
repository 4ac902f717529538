"""jetrelay: transactional messaging on PostgreSQL, NATS JetStream and Dramatiq."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relay.adapters.jetstream.query_client import RemoteQueries
    from relay.bus import RequestContext
    from relay.domain.actor import Actor
    from relay.domain.errors import InvalidEvent, Outage, RelayError
    from relay.domain.personal import PersonalFields
    from relay.events import AGGREGATE, Event, command, event
    from relay.outbox import Outbox

__all__ = [
    "AGGREGATE",
    "Actor",
    "Event",
    "InvalidEvent",
    "Outage",
    "Outbox",
    "PersonalFields",
    "RelayError",
    "RemoteQueries",
    "RequestContext",
    "command",
    "event",
]

#: Loaded at their first use: so a command or a scheduler that writes no event starts in half the time.
_HOMES = {
    "AGGREGATE": "relay.events",
    "Actor": "relay.domain.actor",
    "Event": "relay.events",
    "InvalidEvent": "relay.domain.errors",
    "Outage": "relay.domain.errors",
    "Outbox": "relay.outbox",
    "PersonalFields": "relay.domain.personal",
    "RelayError": "relay.domain.errors",
    "RemoteQueries": "relay.adapters.jetstream.query_client",
    "RequestContext": "relay.bus",
    "command": "relay.events",
    "event": "relay.events",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
