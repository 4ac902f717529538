"""Ports (SDS-047 §7): the interfaces that the core needs. Each docstring is the contract.

The port of the stream is a seam for tests, not for another broker: the core relies on what JetStream does.
The spec's single-row methods are batch methods here, because one statement for a batch makes the relay fast.
The names and meanings are the spec's.
"""

from relay.ports.archive import ArchiveTables, ColdStore, OpenBatch
from relay.ports.cron import Runs
from relay.ports.handler import EventHandler, HandlerRequest
from relay.ports.inbox import (
    ClaimedMessage,
    InboxAudit,
    InboxReceiver,
    InboxRepository,
    InboxRow,
    InboxSettlement,
    InboxWindow,
    Inserted,
)
from relay.ports.incidents import Compared, DeadPlace, IncidentRecords
from relay.ports.outbox import ClaimedBatch, Expiry, OutboxRepository, OutboxRow, PublishFailure
from relay.ports.stream import (
    ConsumerState,
    Delivery,
    HeldMessage,
    JetStreamConsumer,
    JetStreamPublisher,
    Message,
    StreamLookup,
)

__all__ = [
    "ArchiveTables",
    "ClaimedBatch",
    "ClaimedMessage",
    "ColdStore",
    "Compared",
    "ConsumerState",
    "DeadPlace",
    "Delivery",
    "EventHandler",
    "Expiry",
    "HandlerRequest",
    "HeldMessage",
    "InboxAudit",
    "InboxReceiver",
    "InboxRepository",
    "InboxRow",
    "InboxSettlement",
    "InboxWindow",
    "IncidentRecords",
    "Inserted",
    "JetStreamConsumer",
    "JetStreamPublisher",
    "Message",
    "OpenBatch",
    "OutboxRepository",
    "OutboxRow",
    "PublishFailure",
    "Runs",
    "StreamLookup",
]
