"""Every error that jetrelay raises, in one tree, each with a stable code.

    RelayError
    ├── ConfigurationError      INVALID_CONFIG
    ├── InvalidEvent            INVALID_OUTBOX
    │   ├── FutureEvent         FUTURE_EVENT
    │   ├── InvalidSubject      INVALID_SUBJECT
    │   │   └── ForeignSubject  FOREIGN_SUBJECT
    │   ├── InvalidPayload      INVALID_PAYLOAD
    │   ├── PayloadTooLarge     PAYLOAD_TOO_LARGE
    │   ├── InvalidHeader       INVALID_HEADER
    │   ├── InvalidKey          INVALID_KEY
    │   ├── InvalidActor        INVALID_ACTOR
    │   └── InvalidTimestamp    INVALID_TIMESTAMP
    ├── PersonalDamaged         PERSONAL_DAMAGED
    ├── UnknownKey              UNKNOWN_KEY
    ├── SubjectForgotten        SUBJECT_FORGOTTEN    (kept in dead letters, not raised)
    ├── InvalidTask             INVALID_TASK         (relay.domain.tasks, with UNKNOWN_TASK,
    │                                                 NOT_CANCELLABLE beside it)
    ├── UnknownControl          UNKNOWN_CONTROL      (relay.domain.controls)
    ├── InvalidSchedule         INVALID_SCHEDULE     (relay.domain.schedule, with UNKNOWN_JOB,
    │                                                 NOT_PAUSABLE beside it)
    ├── ArchiveError            ARCHIVE_ERROR        (relay.domain.archive, with ARCHIVE_OFF, ARCHIVE_BUSY,
    │                                                 ARCHIVE_DAMAGED, ARCHIVE_CONFLICT below it)
    ├── DuplicateMessage        DUPLICATE_MESSAGE
    ├── WriteConflict           WRITE_CONFLICT
    ├── OutboxFull              OUTBOX_FULL
    ├── UpgradeBlocked          UPGRADE_BLOCKED
    ├── MalformedMessage        MALFORMED_MESSAGE
    ├── NoTransaction           NO_TRANSACTION
    ├── UnsupportedTarget       UNSUPPORTED_TARGET
    ├── UnknownContext          UNKNOWN_CONTEXT
    ├── NotPublishable          NOT_PUBLISHABLE
    ├── StreamMissing           STREAM_MISSING       (kept in publish_error, not raised)
    ├── StreamMismatch          STREAM_MISMATCH      (kept in publish_error, not raised)
    ├── InvalidRequest          INVALID_REQUEST
    ├── BreakingChange          BREAKING_CHANGE
    ├── UnknownId               UNKNOWN_ID           (relay.domain.life)
    ├── TooMany                 TOO_MANY
    ├── UnknownIncident         UNKNOWN_INCIDENT
    ├── IncidentClosed          INCIDENT_CLOSED
    ├── UnreadableMessage       UNREADABLE_MESSAGE
    ├── NotRequeueable          NOT_REQUEUEABLE
    ├── NotParked               NOT_PARKED
    ├── NotStoppable            NOT_STOPPABLE
    ├── NotStopped              NOT_STOPPED
    ├── Stale                   EXPIRED
    ├── NotReplayable           NOT_REPLAYABLE
    ├── NotRetryable            NOT_RETRYABLE
    ├── UnknownMessage          UNKNOWN_MESSAGE
    ├── UnknownQueue            UNKNOWN_QUEUE
    ├── AlertRefused            ALERT_REFUSED
    ├── HandlerUnreachable      HANDLER_UNREACHABLE
    ├── MissingExtraError       MISSING_EXTRA
    ├── InvalidHandler          INVALID_HANDLER
    ├── InvalidCommand          INVALID_COMMAND      (relay.bus, with INVALID_QUERY, NO_HANDLER,
    │                                                 DUPLICATE_HANDLER, COMMIT_REFUSED, NESTED_COMMAND,
    │                                                 ENDLESS_EVENTS, NOTHING_FOUND beside it)
    ├── QueryFailed             QUERY_FAILED         (relay.bus, with QUERY_TIMEOUT, NO_RESPONDER,
    │                                                 ANSWERED_BY_STREAM, INVALID_ANSWER below it)
    ├── DomainError             DOMAIN_ERROR         (raised by handlers)
    │   └── Poison              POISON
    ├── AlreadyProcessed        ALREADY_PROCESSED    (raised by handlers)
    ├── RetryLater              RETRY_LATER          (relay.domain.retry, raised by handlers; with
    │                                                 INVALID_RETRY beside it)
    ├── ClaimLost               CLAIM_LOST
    ├── TransactionBroken       TRANSACTION_BROKEN
    ├── SchemaMissing           SCHEMA_MISSING
    ├── SchemaUnsupported       SCHEMA_UNSUPPORTED
    ├── DevStackError           DEVSTACK             (relay.devstack, with SERVER_FAILED,
    │                                                 SERVER_NOT_UP, STACK_BUSY below it)
    └── Outage
        ├── BrokerUnreachable   BROKER_UNREACHABLE
        │   ├── BrokerRefused   BROKER_REFUSED
        │   └── ConsumerMissing CONSUMER_MISSING
        ├── DatabaseUnreachable DATABASE_UNREACHABLE
        │   ├── ConnectionsBusy CONNECTIONS_BUSY
        │   ├── TooSlow         TOO_SLOW
        │   └── LeaseOver       LEASE_OVER
        ├── QueueUnreachable    QUEUE_UNREACHABLE
        ├── KeysUnreachable     KEYS_UNREACHABLE
        ├── MasterKeyMissing    MASTER_KEY_MISSING
        ├── PayloadUnreachable  PAYLOAD_UNREACHABLE
        │   ├── PayloadMissing  PAYLOAD_MISSING
        │   └── PayloadDamaged  PAYLOAD_DAMAGED
        ├── KeyServiceUnreachable KEY_SERVICE_UNREACHABLE
        └── StoreUnreachable    STORE_UNREACHABLE    (relay.domain.archive)

Codes are part of the public interface: they do not change within a major version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

Value = TypeVar("Value")


class RelayError(Exception):
    """Base of every error that jetrelay raises.

    ``field`` names the input at fault. ``hint`` says what to do next. ``quotes``: the message comes from the
    application, for example from its validators, and may hold data. Show it to the caller, but do not log it.
    """

    code: ClassVar[str] = "RELAY_ERROR"
    quotes: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint

    @property
    def explanation(self) -> str:
        """The message and what to do next, without the code."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __str__(self) -> str:
        where = f" [{self.field}]" if self.field else ""
        return f"{self.code}{where}: {self.explanation}"


class ConfigurationError(RelayError):
    """The configuration cannot be used."""

    code = "INVALID_CONFIG"


class InvalidEvent(RelayError, ValueError):
    """An event breaks a rule of the outbox."""

    code = "INVALID_OUTBOX"


class FutureEvent(InvalidEvent):
    """``occurred_at`` lies in the future."""

    code = "FUTURE_EVENT"


class InvalidSubject(InvalidEvent):
    """A subject, or a part of one, is not allowed on the wire."""

    code = "INVALID_SUBJECT"


class ForeignSubject(InvalidSubject):
    """A topic is no subject of the context's own streams, and no route of the context declares it."""

    code = "FOREIGN_SUBJECT"


class InvalidPayload(InvalidEvent):
    """The payload is not JSON that every party can read."""

    code = "INVALID_PAYLOAD"


class PayloadTooLarge(InvalidEvent):
    """The message would exceed what the broker accepts."""

    code = "PAYLOAD_TOO_LARGE"


class InvalidHeader(InvalidEvent):
    """A header name or value is not allowed."""

    code = "INVALID_HEADER"


class InvalidKey(InvalidEvent):
    """An id or key is empty, too long, or holds characters that cannot be stored."""

    code = "INVALID_KEY"


class InvalidActor(InvalidEvent):
    """An actor has no usable id, or is none of HUMAN, AGENT and SYSTEM."""

    code = "INVALID_ACTOR"


class InvalidTimestamp(InvalidEvent):
    """A time has no zone or is out of range."""

    code = "INVALID_TIMESTAMP"


class PersonalDamaged(RelayError):
    """An encrypted value, or a wrapped key, is not what was written."""

    code = "PERSONAL_DAMAGED"


class UnknownKey(RelayError):
    """The context that has encrypted a value has no such key."""

    code = "UNKNOWN_KEY"


class SubjectForgotten(RelayError):
    """A message is about a person who was forgotten, and its subscription takes no such messages."""

    code = "SUBJECT_FORGOTTEN"


class DuplicateMessage(RelayError):
    """The id is already used: by a message in the inbox, or by an event or task in its outbox."""

    code = "DUPLICATE_MESSAGE"


class WriteConflict(RelayError):
    """Transactions wrote the same keys in opposite order, or waited too long for a lock: run this one again."""

    code = "WRITE_CONFLICT"


class OutboxFull(RelayError):
    """More waits to be published than the context allows, and producers are refused. Try again later."""

    code = "OUTBOX_FULL"


class UpgradeBlocked(RelayError):
    """Other sessions did not release a table in time. Earlier steps stay applied. The upgrade can be repeated."""

    code = "UPGRADE_BLOCKED"


class MalformedMessage(RelayError, ValueError):
    """A received message cannot be read: no id, no type, bad envelope."""

    code = "MALFORMED_MESSAGE"


class NoTransaction(RelayError):
    """The target has no open transaction, so nothing would be atomic."""

    code = "NO_TRANSACTION"


class UnsupportedTarget(RelayError, TypeError):
    """The target is no session or connection of SQLAlchemy, and no connection of psycopg, asyncpg or Django."""

    code = "UNSUPPORTED_TARGET"


class UnknownContext(RelayError, KeyError):
    """No context, or no subscription, of this name is configured."""

    code = "UNKNOWN_CONTEXT"

    __str__ = RelayError.__str__


def of_context(contexts: Mapping[str, Value], name: str) -> Value:
    """What belongs to a context. Raises UnknownContext, which lists those that are known."""
    if name not in contexts:
        known = ", ".join(contexts) or "none"
        raise UnknownContext(f"no context is called {name[:80]!r}", hint=f"known: {known}")
    return contexts[name]


class NotPublishable(RelayError):
    """The outbox event does not exist or is already published."""

    code = "NOT_PUBLISHABLE"


class NotAdopted(RelayError):
    """An event of a stream cannot be written into the outbox: it cannot be read, or its id is taken."""

    code = "NOT_ADOPTED"


class NotMovable(RelayError):
    """A context cannot be closed, opened, renamed or removed now: something would be lost, or done twice."""

    code = "NOT_MOVABLE"


class StreamMissing(RelayError):
    """No stream takes the subject of an event. The event waits: it is sent again until a stream does."""

    code = "STREAM_MISSING"


class StreamMismatch(RelayError):
    """The subject of an event belongs to another stream than the one it names. It waits: see StreamMissing."""

    code = "STREAM_MISMATCH"


class InvalidRequest(RelayError, ValueError):
    """An operator's command is incomplete or contradicts itself; nothing was done."""

    code = "INVALID_REQUEST"


class BreakingChange(RelayError):
    """A published version of an event has changed so that messages of before, or their readers, break."""

    code = "BREAKING_CHANGE"


class LagUnknown(RelayError):
    """How much work is due could not be read in time."""

    code = "LAG_UNKNOWN"


class TooMany(RelayError):
    """A selection matches more than its limit; nothing was done."""

    code = "TOO_MANY"


class UnknownIncident(RelayError):
    """No dead letter is recorded under this id."""

    code = "UNKNOWN_INCIDENT"


class IncidentClosed(RelayError):
    """An operator has already decided about this incident."""

    code = "INCIDENT_CLOSED"


class UnreadableMessage(RelayError):
    """The message could not be read. No number of retries can handle it."""

    code = "UNREADABLE_MESSAGE"


class NotRequeueable(RelayError):
    """In the inbox, the message is not dead because of this incident."""

    code = "NOT_REQUEUEABLE"


class NotReopenable(RelayError):
    """There is no decision that could be taken back: a dead letter is not closed, or a task is not cancelled."""

    code = "NOT_REOPENABLE"


class NotUndoable(RelayError):
    """This act cannot be undone: it has had effects, was undone before, or a later act has changed its rows."""

    code = "NOT_UNDOABLE"


class SelectionUsed(RelayError):
    """The act on these rows has been done already."""

    code = "SELECTION_USED"


class UnknownSelection(RelayError):
    """No rows were counted under this name, or it was more than a day ago."""

    code = "UNKNOWN_SELECTION"


class NotParked(RelayError):
    """No key of this name is parked."""

    code = "NOT_PARKED"


class NotStoppable(RelayError):
    """The event or message is over, in work, or stopped already: it cannot be held or discarded."""

    code = "NOT_STOPPABLE"


class Stale(RelayError):
    """The event, message or task is stale: its time is over, and nobody gets it."""

    code = "EXPIRED"


class NotStopped(RelayError):
    """The message is not held, or the event or message is neither discarded nor expired."""

    code = "NOT_STOPPED"


class NotRetryable(RelayError):
    """The task has neither failed nor been cancelled, or the message does not wait for another attempt."""

    code = "NOT_RETRYABLE"


class UnknownMessage(RelayError):
    """The inbox has no message of this id, or the queue no dead job."""

    code = "UNKNOWN_MESSAGE"


class UnknownQueue(RelayError):
    """No queue of the fleet or of tasks has this name."""

    code = "UNKNOWN_QUEUE"


class NotReplayable(RelayError):
    """The outbox event does not exist or is not published."""

    code = "NOT_REPLAYABLE"


class AlertRefused(RelayError):
    """The channel for alerts did not accept an alert."""

    code = "ALERT_REFUSED"


class HandlerUnreachable(RelayError):
    """Nobody accepts connections at the address of a handler that is to be checked."""

    code = "HANDLER_UNREACHABLE"


class MissingExtraError(RelayError):
    """A needed optional package is not installed."""

    code = "MISSING_EXTRA"


class InvalidHandler(RelayError, TypeError):
    """A Python handler or upcaster cannot be called as it is declared."""

    code = "INVALID_HANDLER"


class DomainError(RelayError):
    """Raised by a handler: a business rule refuses the event, now and always (HTTP 422)."""

    code = "DOMAIN_ERROR"


class Poison(DomainError):
    """Raised by a handler: the event makes no sense. It becomes a dead letter."""

    code = "POISON"


class AlreadyProcessed(RelayError):
    """Raised by a handler: it has done this earlier. Its new writes are rolled back (HTTP 409)."""

    code = "ALREADY_PROCESSED"


class ClaimLost(RelayError):
    """Another worker holds the row now. The writes of this worker are rolled back."""

    code = "CLAIM_LOST"


class TransactionBroken(RelayError):
    """A function has ended the transaction that it shares with others, or has lost its connection."""

    code = "TRANSACTION_BROKEN"


class SchemaMissing(RelayError):
    """The database lacks some or all of our tables: it has not been migrated."""

    code = "SCHEMA_MISSING"


class SchemaUnsupported(RelayError):
    """The tables were made before the first release, and no upgrade leads from there."""

    code = "SCHEMA_UNSUPPORTED"


class Outage(RelayError):
    """A server cannot be reached. Wait and try again; the data is correct. ``server`` is the server's name."""

    code = "OUTAGE"
    server: ClassVar[str] = "unknown"


class BrokerUnreachable(Outage):
    """nats-server does not answer."""

    code = "BROKER_UNREACHABLE"
    server = "nats"


class BrokerRefused(BrokerUnreachable):
    """nats-server answers and refuses: the credentials are wrong, or a permission is missing.

    It is retried like an outage, because an operator can grant access while we run.
    """

    code = "BROKER_REFUSED"


class ConsumerMissing(BrokerUnreachable):
    """A stream or a durable consumer that is configured does not exist. It is retried like an outage."""

    code = "CONSUMER_MISSING"


class DatabaseUnreachable(Outage):
    """PostgreSQL does not answer."""

    code = "DATABASE_UNREACHABLE"
    server = "postgresql"


class ConnectionsBusy(DatabaseUnreachable):
    """For ten seconds all connections that the process may have to a server were in use (``max_connections``)."""

    code = "CONNECTIONS_BUSY"


class TooSlow(DatabaseUnreachable):
    """PostgreSQL needs longer for a question than a person waits."""

    code = "TOO_SLOW"


class LeaseOver(DatabaseUnreachable):
    """A claim was lost or could not be renewed in time. Its worker stops, and another continues."""

    code = "LEASE_OVER"


class QueueUnreachable(Outage):
    """Redis does not answer."""

    code = "QUEUE_UNREACHABLE"
    server = "redis"


class KeysUnreachable(Outage):
    """No worker of the context that has encrypted a value answers for its keys."""

    code = "KEYS_UNREACHABLE"
    server = "nats"


class MasterKeyMissing(Outage):
    """A process lacks the master key that it needs, by its settings, or a key service does not open it."""

    code = "MASTER_KEY_MISSING"


class PayloadUnreachable(Outage):
    """The content of a large payload cannot be had now."""

    code = "PAYLOAD_UNREACHABLE"
    server = "nats"


class PayloadMissing(PayloadUnreachable):
    """The store of a large payload does not have its content."""

    code = "PAYLOAD_MISSING"


class PayloadDamaged(PayloadUnreachable):
    """The content of a large payload is not that of the event: size or digest differ."""

    code = "PAYLOAD_DAMAGED"


class KeyServiceUnreachable(Outage):
    """The key service that opens a master key does not answer."""

    code = "KEY_SERVICE_UNREACHABLE"
    server = "kms"
