"""The contracts of the ports as tests, for adapters of your own.

Each is a class for pytest: derive from it, and give it the fixture ``bench`` that it describes. Its tests are
coroutines, so mark the class for your plugin, for example with ``pytest.mark.anyio``; an envelope's are plain.
"""

from relay.testing.contracts.archive import ArchiveBench, ArchiveContract, ColdStoreBench, ColdStoreContract
from relay.testing.contracts.envelope import EnvelopeBench, EnvelopeContract
from relay.testing.contracts.inbox import InboxBench, InboxContract
from relay.testing.contracts.outbox import OutboxBench, OutboxContract, PublishState
from relay.testing.contracts.records import IncidentsBench, IncidentsContract, RunsBench, RunsContract
from relay.testing.contracts.stream import (
    ConsumerBench,
    ConsumerContract,
    PublisherBench,
    PublisherContract,
)

__all__ = [
    "ArchiveBench",
    "ArchiveContract",
    "ColdStoreBench",
    "ColdStoreContract",
    "ConsumerBench",
    "ConsumerContract",
    "EnvelopeBench",
    "EnvelopeContract",
    "InboxBench",
    "InboxContract",
    "IncidentsBench",
    "IncidentsContract",
    "OutboxBench",
    "OutboxContract",
    "PublishState",
    "PublisherBench",
    "PublisherContract",
    "RunsBench",
    "RunsContract",
]
