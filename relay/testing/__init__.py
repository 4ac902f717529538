"""Adapters in memory for every port of `relay.ports`, for unit tests without servers.

They keep the promises of the ports: claims are leases fenced by tokens, repeats are recognised, keys keep their
order. `relay.testing.contracts` holds the tests of these promises; the real adapters pass the same tests.

Time stands still until a test moves the `Clock`. With ``adapter.down = True`` every call raises the error of an
outage.
"""

from relay.testing.archive import MemoryArchive, MemoryColdStore
from relay.testing.clock import Clock
from relay.testing.inbox import MemoryInbox, StoredMessage
from relay.testing.listeners import MemoryFacts, MemoryHandler
from relay.testing.outbox import MemoryOutbox, StoredEvent
from relay.testing.records import MemoryIncidents, MemoryRuns, StoredRun
from relay.testing.stream import MemoryConsumer, MemoryPublisher, MemoryStream, StreamMessage

__all__ = [
    "Clock",
    "MemoryArchive",
    "MemoryColdStore",
    "MemoryConsumer",
    "MemoryFacts",
    "MemoryHandler",
    "MemoryInbox",
    "MemoryIncidents",
    "MemoryOutbox",
    "MemoryPublisher",
    "MemoryRuns",
    "MemoryStream",
    "StoredEvent",
    "StoredMessage",
    "StoredRun",
    "StreamMessage",
]
