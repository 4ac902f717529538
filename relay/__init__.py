"""jetrelay: transactional messaging on PostgreSQL, NATS JetStream and Dramatiq."""

from relay.bus import RequestContext
from relay.domain.errors import InvalidEvent, Outage, RelayError
from relay.events import AGGREGATE, Event, event
from relay.outbox import Outbox

__all__ = ["AGGREGATE", "Event", "InvalidEvent", "Outage", "Outbox", "RelayError", "RequestContext", "event"]
