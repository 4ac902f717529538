"""Connects the adapters to the commands (SDS-047 §13). Only this module knows both."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

from dramatiq.middleware import Middleware
from pydantic import SecretStr

from relay import jobs
from relay.adapters.coldstore import BucketStore, FolderStore
from relay.adapters.dramatiq.broker import RelayBroker, create_broker
from relay.adapters.dramatiq.gates import GATE_TIMES, Gates, GateTimes
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.jetstream.refusals import Refusal
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor, NatsStreamLookup
from relay.adapters.members import Members
from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.budget import Budgets
from relay.adapters.postgres.controls import KnownControls
from relay.adapters.postgres.fitting import FIT_TIMES, FitConnections, FitTimes
from relay.adapters.postgres.history import PostgresHistory
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.ledger import PostgresLedger
from relay.adapters.postgres.movements import PostgresMovements
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.adapters.postgres.orphans import PostgresOrphans
from relay.adapters.postgres.outbox import LARGEST, PostgresOutboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresSchedule
from relay.adapters.postgres.sequences import sequences_behind
from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.adapters.postgres.wakeup import Wakeup
from relay.commands.adopt import DecideOrphans
from relay.commands.alerts import SendAlerts
from relay.commands.archive import ArchiveRows
from relay.commands.balance import CheckBalance
from relay.commands.deadletter import RouteToDeadLetter
from relay.commands.incidents import RecordIncidents
from relay.commands.lag import ReadLag
from relay.commands.open_personal import OpenPersonal
from relay.commands.orphans import FindOrphans
from relay.commands.publish import PublishConfig, PublishOutboxEvents
from relay.commands.reconcile import HORIZON, FindMissing, ReconcileStream
from relay.concurrency import FairSlots
from relay.credentials import http_access, nats_options, redis_options
from relay.domain.errors import UnknownContext, of_context
from relay.domain.facts import Fact, FactSink
from relay.domain.ordering import LANES
from relay.domain.retry import RetryPolicy
from relay.domain.topology import ConsumerSpec
from relay.envelopes import writer
from relay.execution.tallies import Tallies
from relay.jobs import Duty
from relay.ports import ColdStore, JetStreamConsumer
from relay.ports.subject_keys import SubjectKeys
from relay.settings import ArchiveSettings, ContextSettings, Settings, SubscriptionSettings

if TYPE_CHECKING:
    from relay.adapters.jetstream.query_client import RemoteQueries
    from relay.adapters.postgres.transactions import HandlerTransactions

_log = logging.getLogger("relay")


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that one bounded context needs at run time."""

    name: str
    settings: ContextSettings
    pool: Pool
    inbox: PostgresInboxAdapter
    wakeup: Wakeup
    publish: PublishOutboxEvents
    dead_letters: RouteToDeadLetter
    incidents: PostgresIncidents
    record_incidents: RecordIncidents
    reconcile: ReconcileStream
    schedule: PostgresSchedule
    history: PostgresHistory
    backlogs: PostgresBacklogReader
    movements: PostgresMovements
    controls: KnownControls


class Facts:
    """Passes facts to the listeners. A listener that fails never harms delivery."""

    def __init__(self, listeners: Sequence[FactSink] = ()) -> None:
        self._listeners = list(listeners)

    def listen(self, listener: FactSink) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def __call__(self, fact: Fact, /) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            try:
                listener(fact)
            except BaseException:
                _log.exception("a fact listener failed")


class Application:
    """The adapters of one process, made from settings. It connects when it is started, inside the event loop.

    ``on_start``: begins what others add. ``on_stop``: closes what others have opened. ``on_quiesce``: called, in
    any thread, before the process stops. Actor modules add their own functions.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        role: str = "relay",
        gate_times: GateTimes = GATE_TIMES,
        fit_times: FitTimes = FIT_TIMES,
    ) -> None:
        self.settings = settings
        self.facts = Facts()
        self.stopping = False
        nats_url = settings.nats_url.get_secret_value()
        self.nats = NatsConnection(nats_url, name=f"jetrelay-{role}", **nats_options(settings))
        self.nats.on_refused.append(_log_refusal)
        redis_url, access = settings.redis_url.get_secret_value(), redis_options(settings)
        self.gates = Gates(redis_url, settings.redis_namespace, times=gate_times, **access)
        #: The heartbeats share the connections of the gates.
        self.members = Members(self.gates.client, settings.redis_namespace)
        self._role = role
        self.budgets = Budgets(settings.max_connections)
        self._fitting = FitConnections(settings.max_connections, self.members, fit_times)
        # As many batches as one context alone has: two of each shard. All contexts share them.
        self._batches = FairSlots(2 * max((it.publish.shards for it in settings.contexts.values()), default=1))
        self._contexts: dict[str, Context] = {}
        self.on_start: list[Callable[[], Awaitable[None]]] = []
        self.on_stop: list[Callable[[], Awaitable[None]]] = []
        self.on_quiesce: list[Callable[[], None]] = []
        self._consumers: dict[tuple[str, str], JetStreamConsumer] = {}
        #: What this process counts for the histories; a worker starts it.
        self.tallies = Tallies(lambda name: self.context(name).history)
        self._ordered: dict[tuple[str, str], OrderedInboxAdapter] = {}
        self._transactions: dict[tuple[str, str], HandlerTransactions] = {}

    async def start(self) -> None:
        """Begin to connect. Returns at once, even if the servers do not answer."""
        for name in self.settings.contexts:
            parts = self.context(name)
            await parts.pool.open()
            database = parts.settings.pooler or parts.settings.database
            pooled = parts.settings.pooler is not None
            self._fitting.add(self.budgets.of(database), parts.pool, pooled=pooled)
        self._fitting.start()
        self.nats.start()
        for begin in self.on_start:
            await begin()

    def may_listen(self, context: str) -> bool:
        """Whether the server of a context has room for a worker that listens to it, too."""
        return self._fitting.may_listen(self.context(context).pool)

    def quiesce(self) -> None:
        """Ask long-running jobs to end, and all jobs to give back work that they have not begun."""
        self.stopping = True
        for tell in self.on_quiesce:
            tell()

    async def stop(self) -> None:
        """Close every connection."""
        self.stopping = True
        for close in self.on_stop:
            await close()
        await self._fitting.stop()
        await self.nats.close()
        await self.gates.aclose()
        for context in self._contexts.values():
            await context.wakeup.close()
            await context.pool.close()

    def context(self, name: str) -> Context:
        """The run-time parts of a context, made on first use. Raises UnknownContext."""
        if name not in self._contexts:
            self._contexts[name] = self._build(name, of_context(self.settings.contexts, name))
        return self._contexts[name]

    def subscription(self, context: str, name: str) -> SubscriptionSettings:
        """The settings of a subscription. Raises UnknownContext."""
        subscriptions = self.context(context).settings.subscriptions
        if name not in subscriptions:
            raise UnknownContext(f"context {context!r} has no subscription {name!r}")
        return subscriptions[name]

    def consumer(self, context: str, name: str) -> JetStreamConsumer:
        """The JetStream consumer of a subscription. A process has only one of each."""
        if (context, name) not in self._consumers:
            self._consumers[context, name] = self.fetching(self.subscription(context, name).consumer_spec())
        return self._consumers[context, name]

    def fetching(self, spec: ConsumerSpec) -> JetStreamConsumer:
        """A JetStream consumer that fetches at most its share of the bytes that the process may hold."""
        share = self.settings.pull_bytes_each
        return NatsJetStreamConsumer(self.nats, stream=spec.stream, durable=spec.durable, max_bytes=share)

    def inbox(self, context: str, name: str) -> PostgresInboxAdapter:
        """The inbox of a subscription: ordered or not, as configured. Raises UnknownContext."""
        return self.order(context, name) or self.context(context).inbox

    def order(self, context: str, name: str) -> OrderedInboxAdapter | None:
        """The ordered inbox of a subscription; None if it does not ask for order. Raises UnknownContext."""
        settings = self.subscription(context, name)
        if settings.order == "none":
            return None
        if (context, name) not in self._ordered:
            pool = self.context(context).pool
            self._ordered[context, name] = OrderedInboxAdapter(pool, failed_head=settings.failed_head)
        return self._ordered[context, name]

    def lag(self, context: str) -> ReadLag:
        """Reads how much work is due in a context. Raises UnknownContext."""
        parts = self.context(context)
        names = list(parts.settings.subscriptions)
        blocks = parts.settings.publish.dead_head == "block"
        tables = partial(parts.backlogs.lag, names, dead_head_blocks=blocks)
        return ReadLag(context, tables, {name: self.consumer(context, name) for name in names})

    def find_missing(self, context: str, name: str, horizon: timedelta | None = HORIZON) -> FindMissing:
        """The comparison of a subscription's stream with its inbox. ``horizon``: None for messages of any age."""
        spec = self.subscription(context, name).consumer_spec()
        return FindMissing(
            context,
            name,
            stream=spec.stream,
            filter_subject=spec.filter_subject,
            consumer=self.consumer(context, name),
            auditor=NatsStreamAuditor(self.nats),
            inbox=PostgresLedger(self.context(context).pool),
            others=[it for it in self.context(context).settings.subscriptions if it != name],
            horizon=horizon,
        )

    def balance(self, context: str) -> CheckBalance:
        """The comparison of all that a context has sent and received. Raises UnknownContext."""
        parts = self.context(context)
        return CheckBalance(
            context=context,
            declared=[stream.name for stream in parts.settings.event_streams],
            reconcile=parts.reconcile,
            orphans=self.orphans(context),
            inboxes=[self.find_missing(context, name, None) for name in parts.settings.subscriptions],
            levels=parts.backlogs.levels,
            behind=partial(sequences_behind, parts.pool.connection),
        )

    def orphans(self, context: str) -> FindOrphans:
        """The comparison of a context's streams with its outbox. Raises UnknownContext."""
        parts = self.context(context)
        streams = [stream.name for stream in parts.settings.event_streams]
        others = [name for name in self.settings.contexts if name != context]
        ledger, auditor = PostgresOrphans(parts.pool.connection), NatsStreamAuditor(self.nats)
        return FindOrphans(context, streams, others, ledger, auditor, self.facts)

    def deciding_orphans(self, context: str) -> DecideOrphans:
        """What adopts and reports orphans of a context. Raises UnknownContext and ConfigurationError."""
        parts = self.context(context)
        rows, reader = PostgresOrphans(parts.pool.connection), NatsStreamAuditor(self.nats)
        envelope = writer(self.settings, context)
        routing, system = parts.settings.routing, parts.settings.system_actor
        return DecideOrphans(context, self.orphans(context), reader, rows, routing, envelope, system)

    def transactions(self, context: str, purpose: str, limit: timedelta) -> HandlerTransactions:
        """The transactions of functions on a context's database. They are closed when the process stops.

        ``purpose``: what PostgreSQL shows as the name of their sessions. All functions of a purpose share their
        connections. A process has few, and connections of its own for each would close those of others.
        Raises UnknownContext.
        """
        if (known := self._transactions.get((context, purpose))) is not None:
            return known.limited(limit)
        from relay.adapters.postgres.transactions import HandlerTransactions  # noqa: PLC0415 - loads SQLAlchemy

        settings = self.context(context).settings
        database = settings.pooler or settings.handler_database
        transactions = HandlerTransactions(
            database,
            limit=limit,
            application_name=f"jetrelay-{purpose}-{context}",
            budget=self.budgets.of(database),
            pooler=settings.pooler is not None,
        )
        self.on_stop.append(transactions.close)
        self._transactions[context, purpose] = transactions
        return transactions

    @cached_property
    def personal(self) -> OpenPersonal | None:
        """What reads personal values; None without a master key."""
        if (masters := self.settings.personal.value()) is None:
            return None
        from relay.adapters import aes_gcm  # noqa: PLC0415 - an extra

        return OpenPersonal(masters, self.subject_keys, aes_gcm.unwrap, aes_gcm.decrypting)

    def subject_keys(self, context: str) -> SubjectKeys:
        """The keys of persons of a context: in its database if that is ours, else over NATS."""
        if context in self.settings.contexts:
            return PostgresSubjectKeys(self.context(context).pool.connection)
        from relay.adapters.jetstream.subject_keys import NatsSubjectKeys  # noqa: PLC0415 - few processes ask

        return NatsSubjectKeys(self._remote, context)

    @cached_property
    def _remote(self) -> RemoteQueries:
        from relay.adapters.jetstream.query_client import RemoteQueries  # noqa: PLC0415 - few processes ask

        return RemoteQueries(self.nats)

    def archive(self, context: str) -> ArchiveRows | None:
        """The archive of a context; None if it is off. Raises UnknownContext."""
        parts = self.context(context)
        after, store = parts.settings.archive.after, cold_store(parts.settings.archive)
        if after is None or store is None:
            return None
        tables, auditor = PostgresArchive(parts.pool.connection, context), NatsStreamAuditor(self.nats)
        keep = parts.settings.archive.keep
        return ArchiveRows(context, after, tables, store, auditor, self.facts, keep=keep)

    def _build(self, name: str, settings: ContextSettings) -> Context:
        database = settings.pooler or settings.database
        pool = Pool(
            database,
            max_size=16,
            application_name=f"jetrelay-{self._role}-{name}",
            budget=self.budgets.of(database),
            pooler=settings.pooler is not None,
        )
        publisher = NatsJetStreamPublisher(self.nats, ack_timeout=settings.publish.ack_timeout)
        wakeup = Wakeup(pool, settings.database)
        outbox = PostgresOutboxAdapter(
            partial(wakeup.lend, at_once=True),
            dead_head_blocks=settings.publish.dead_head == "block",
            largest=lambda: publisher.largest(LARGEST),
        )
        config = PublishConfig(
            routing=settings.routing,
            envelope=writer(self.settings, name),
            batch_size=settings.publish.batch_size,
            batch_bytes=settings.publish.batch_bytes,
            expires_in=settings.expires_in,
            ttl=all(stream.message_ttl for stream in settings.event_streams),
            policy=RetryPolicy.of(
                settings.publish.max_attempts, settings.publish.backoff_initial, settings.publish.backoff_max
            ),
            system_actor=settings.system_actor,
            dead_head_blocks=settings.publish.dead_head == "block",
        )
        controls = KnownControls(pool.connection)
        incidents = PostgresIncidents(pool.connection)
        record = RecordIncidents(name, incidents, self.facts)
        dead_letters = RouteToDeadLetter(
            name,
            publisher,
            self.facts,
            stream=settings.dlq.name,
            stored=NatsStreamLookup(self.nats),
            incidents=record,
            letter_streams=self.settings.letter_streams,
        )
        return Context(
            name=name,
            settings=settings,
            pool=pool,
            inbox=PostgresInboxAdapter(pool),
            wakeup=wakeup,
            publish=PublishOutboxEvents(config, outbox, publisher, self.facts, self._batches, controls.now),
            dead_letters=dead_letters,
            incidents=incidents,
            record_incidents=record,
            reconcile=ReconcileStream(name, PostgresLedger(pool), NatsStreamAuditor(self.nats), self.facts),
            schedule=PostgresSchedule(pool.connection),
            history=PostgresHistory(pool.connection),
            backlogs=PostgresBacklogReader(pool.connection),
            movements=PostgresMovements(
                pool.connection,
                bound=self.settings.health.stalled_after,
                dead_head_blocks=settings.publish.dead_head == "block",
            ),
            controls=controls,
        )


def duties(context: ContextSettings) -> list[Duty]:
    """The duties of a context, which have gates. While much waits, it has as many shards as lanes at most."""
    name = context.name
    found = [jobs.PUBLISH.of(name, number) for number in range(LANES)]
    found += [jobs.PULL.of(name, it) for it in context.subscriptions]
    kinds = (
        jobs.RECONCILE_STREAM,
        jobs.PRUNE,
        jobs.LOOK_AFTER,
        jobs.DELIVER_TASKS,
        jobs.SWEEP_TASKS,
        jobs.ARCHIVE,
    )
    return [*found, *(kind.of(name) for kind in kinds)]


def alert_sender(context: ContextSettings, alerts: PostgresAlerts, facts: FactSink) -> SendAlerts:
    """What sends the alerts of a context. Raises ConfigurationError for a certificate that cannot be used."""
    settings, channel = context.alerts, None
    if settings.webhook is not None:
        from relay.adapters.webhook import Webhook  # noqa: PLC0415 - loads the HTTP client

        access = http_access(settings, f"contexts.{context.name}.alerts")
        channel = Webhook(settings.webhook.get_secret_value(), access)
    return SendAlerts(
        context=context.name,
        alerts=alerts,
        channel=channel,
        facts=facts,
        per_minute=settings.per_minute,
        runbook=settings.runbook,
        classes=settings.classes,
        subscriptions=settings.subscriptions,
    )


def cold_store(archive: ArchiveSettings) -> ColdStore | None:
    """Where a context archives; None if nowhere. Raises MissingExtraError and ConfigurationError."""
    if archive.bucket is None:
        return None if archive.directory is None else FolderStore(archive.directory)
    names = ("endpoint", "region", "access_key_id", "secret_access_key")
    values = {name: getattr(archive, name) for name in names} | archive.options
    plain = {name: it.get_secret_value() if isinstance(it, SecretStr) else it for name, it in values.items()}
    return BucketStore(archive.bucket, {name: it for name, it in plain.items() if it is not None})


def job_broker(settings: Settings, middleware: Sequence[Middleware] = ()) -> RelayBroker:
    """The broker of jobs and tasks. Raises ConfigurationError for a certificate that cannot be used."""
    options = {"namespace": settings.redis_namespace, "middleware": middleware, **redis_options(settings)}
    return create_broker(settings.redis_url.get_secret_value(), **options)


def _log_refusal(refusal: Refusal) -> None:
    """Log, once for each connection, the permission that an operator must grant."""
    if refusal.first:
        _log.error("%s", refusal)
