"""Every key of the configuration, its default and its own limits. `rules` checks keys against each other."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    DirectoryPath,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from relay.domain.backpressure import BrakeAction, OutboxLimits
from relay.domain.controls import MOST_AT_ONCE, Limit
from relay.domain.errors import of_context
from relay.domain.ordering import FailedHead
from relay.domain.querying import keys_subject, payloads_subject, query_subjects
from relay.domain.retry import LONGEST_DELAY
from relay.domain.routing import DEFAULT_TEMPLATE, Route, Routing, dead_letter_subject, event_subjects
from relay.domain.topology import (
    RELAY_ADVISORIES,
    ConsumerSpec,
    StreamSpec,
    advisory_consumer,
    dead_letter_consumer,
    subjects_overlap,
)
from relay.settings.archive import ArchiveSettings
from relay.settings.credentials import HttpSettings, NatsSettings, RedisSettings
from relay.settings.ops import OpsSettings
from relay.settings.payloads import PayloadLimit, PayloadsSettings
from relay.settings.personal import PersonalFieldsSettings, PersonalSettings
from relay.settings.section import Section
from relay.settings.telemetry import HealthSettings, MetricsSettings, TracingSettings
from relay.settings.urls import (
    DatabaseUrl,
    HandlerUrl,
    ModuleName,
    NatsUrl,
    RedisUrl,
    WebhookUrl,
    with_search_path,
)
from relay.settings.values import (
    ActorId,
    Age,
    AlertClasses,
    AttributeTemplate,
    BrokerName,
    Count,
    Duration,
    EnvelopeName,
    ErrorNames,
    EventTypes,
    Modules,
    Names,
    Rate,
    SchemaName,
    SearchedFields,
    SearchedType,
    Size,
    StartsAt,
    Subject,
    Subjects,
    UriTemplate,
    parse_list,
    parse_rate,
)

#: What is kept of a failure: codes and places, or also up to 500 bytes of the answer's or exception's text.
ErrorDetail = Literal["codes", "text"]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]
#: Every worker loads these: they do the work of tasks and of subscriptions.
OWN_ACTOR_MODULES: Final = ("tasks.actors", "consumer.actors")
#: How often subscriptions are looked after, at the least.
_LOOK_AFTER: Final = timedelta(seconds=3)
#: The same while none has unfinished messages.
_LOOK_AFTER_QUIET: Final = timedelta(seconds=5)


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def _with_own(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Put our own actor modules in front of those that are named. One that is named keeps its place."""
    return (*(name for name in OWN_ACTOR_MODULES if name not in modules), *modules)


class StreamSettings(Section):
    """A JetStream stream. File storage, retention ``limits`` and discard ``new`` cannot be changed.

    ``max_age`` "unlimited" keeps messages for ever. ``replicas``: 3 in production. ``no_ack``: the stream confirms
    nothing. It is for subjects of requests: else they would get a PubAck as their answer. No event goes there.
    ``message_ttl``: it removes messages that expire by itself; by default where types of the context do.
    """

    name: BrokerName
    subjects: Subjects = Field(min_length=1)
    max_age: Age = timedelta(days=7)
    max_bytes: Size = 10 * 1024**3
    max_msgs_per_subject: Count = -1
    replicas: int = Field(default=1, ge=1, le=5)
    duplicate_window: Duration = Field(default=_seconds(120), ge=timedelta(milliseconds=100))
    no_ack: bool = False
    message_ttl: bool = False

    def spec(self) -> StreamSpec:
        """Return what the broker must hold."""
        return StreamSpec(**self.model_dump())


class RouteSettings(Section):
    """Where some events go. The first row that fits an event decides; if none fits, ``subject`` of the context.

    ``types``: names of events without a topic, as they are or as a beginning with ``*`` behind it. ``topics``:
    patterns of topics. ``subject``: a template; without it a topic stays the subject. ``stream``: the stream that
    must store the event. If another one would, the event waits with STREAM_MISMATCH.
    """

    types: EventTypes = ()
    topics: Subjects = ()
    subject: str | None = None
    stream: BrokerName | None = None

    def route(self) -> Route:
        """Return the row as a value."""
        return Route(**self.model_dump())


class PublishSettings(Section):
    """How a context's outbox is published.

    ``shards``: how many jobs publish the context at a time; while much waits, so many for each worker.
    ``batch_bytes``: a batch ends with the event that brings it to this size of text; a larger event goes alone. A
    worker holds two batches of each of ``shards``, and a few copies. ``ack_timeout``: how long the broker may be
    silent. A batch takes at most twice that time, which is less than the 5 s for which it may hold its rows.
    ``max_attempts``: how often an event is sent to a stream that refuses it as too large. ``dead_head``: whether
    an event that can never be published is skipped, or blocks its key until an operator decides.
    """

    shards: int = Field(default=2, ge=1, le=64)
    batch_size: int = Field(default=300, ge=1, le=1000)
    batch_bytes: Size = Field(default=4 * 1024**2, ge=1024)
    poll_interval: Duration = timedelta(milliseconds=100)
    max_attempts: int = Field(default=10, ge=1)
    dead_head: Literal["skip", "block"] = "skip"
    ack_timeout: Duration = Field(default=_seconds(2), lt=_seconds(2.4))
    backoff_initial: Duration = _seconds(1)
    backoff_max: Duration = _seconds(60)


class BackpressureSettings(Section):
    """When the outbox is full, and what then happens to its producers. Without a limit it is never full.

    ``above``: more events than so many wait to be published. ``age``: one has waited for longer. ``action``: a
    warning ("warn"), a wait of ``delay`` once in each transaction ("delay"), or the error OUTBOX_FULL ("refuse").
    It ends below 80 % of the limits.
    """

    above: int | None = Field(default=None, ge=1, le=10_000_000)
    age: Duration | None = None
    action: BrakeAction = "warn"
    delay: Duration = Field(default=_seconds(0.05), le=_seconds(10))

    def limits(self) -> OutboxLimits:
        """Return the section as a value."""
        return OutboxLimits(**self.model_dump())


class AlertSettings(HttpSettings):
    """Where alerts about final failures and lasting conditions go.

    ``webhook`` gets a POST with JSON, at most ``per_minute`` times a minute. Alerts that come faster are combined.
    ``classes``, ``subscriptions``: which alerts it gets; empty: all. ``check_every``: how often conditions are
    looked for. ``repeat``: after this time a condition that lasts alerts again. ``runbook``: its address.
    """

    webhook: WebhookUrl | None = None
    per_minute: int = Field(default=6, ge=1, le=60)
    classes: AlertClasses = ()
    subscriptions: Names = ()
    check_every: Duration = Field(default=_seconds(15), ge=_seconds(1))
    repeat: Duration = _seconds(3600)
    runbook: str = "docs/how-to/runbook.md"


class SubscriptionSettings(HttpSettings):
    """A durable consumer and its handler. ``name`` and ``context`` come from the keys.

    ``handler`` is a URL, or ``python:`` and a module. ``handler_timeout`` is the total for one call.
    ``max_attempts`` counts handler calls; ``max_deliver`` counts JetStream's deliveries. ``settle``: acknowledge
    to JetStream after the handler's answer ("handler"), or after the inbox row is committed ("inbox").
    ``on_failure``: what JetStream is told of a failed attempt: nothing ("silence"), or a NAK whose delay is the
    row's back-off, and a TERM after every dead letter ("nak"). In both cases the row decides when to try again.
    ``unknown``: what to do with an event for which the Python module has no handler. With "wait" it waits without
    attempts while another worker has one, for up to ``retry_after_for``; then it is a dead letter.
    ``unknown_for``: so long it waits also if no worker has one. ``order``: with "key", the messages of one
    partition key are handled one after the other. ``failed_head``: what to do with the messages
    behind a dead letter. ``chunk``: how many messages a worker may take together; each has its own verdict.
    ``max_inbox``: while so many messages are unfinished, parked ones aside, none is pulled; below 80 % it goes on.
    ``concurrency``: how many messages run at once. ``rate``: how many begin in a time, evenly spaced; with
    ``rate_per_key`` of each partition key. An operator's limit goes before both.
    ``expires_in``: a message that is not handled so long after it occurred is stale: its handler does not get it.
    ``circuit``: while the handler is away, only single messages are tried, and none loses an attempt. It counts as
    away when ``circuit_failures`` calls in a row have failed, for ``circuit_messages`` messages at least.
    ``circuit_probe_max``: the longest pause between two messages that are tried meanwhile. ``circuit_longest``:
    when it has been open for so long, those that are tried spend attempts again.
    ``start_at``: which messages a new consumer gets: all in the stream, those from "now" on, or from a moment on.
    ``error_detail``: "text" keeps the text of answers and exceptions, which may hold payload, in columns, logs and
    alerts. The default is the context's.
    ``personal``: whether a service gets encrypted values as they are, or in plain text. Python functions get plain
    ``personal``: whether a service gets encrypted values as they are, or plain. Python functions get them plain if
    the process has the master keys. ``forgotten``: what to do with a message of a person who was forgotten: call
    the handler with nulls, skip it, or make it a dead letter.
    """

    filled: ClassVar[frozenset[str]] = frozenset({"name", "context"})

    name: str
    context: str
    stream: BrokerName
    durable: BrokerName
    filter_subject: Subject
    ack_wait: Duration = _seconds(120)
    max_deliver: Count = 20
    max_ack_pending: Count = 50
    start_at: StartsAt = "beginning"
    settle: Literal["handler", "inbox"] = "handler"
    on_failure: Literal["silence", "nak"] = "silence"
    handler: HandlerUrl
    unknown: Literal["wait", "dead-letter", "skip", "retry"] = "wait"
    unknown_for: Duration | None = None
    order: Literal["none", "key"] = "none"
    failed_head: FailedHead = "block"
    chunk: int = Field(default=1, ge=1, le=500)
    max_inbox: int | None = Field(default=None, ge=1, le=10_000_000)
    concurrency: int | None = Field(default=None, ge=1, le=MOST_AT_ONCE)
    rate: Rate | None = None
    rate_per_key: bool = False
    expires_in: Duration | None = None
    handler_timeout: Duration = _seconds(30)
    connect_timeout: Duration = _seconds(5)
    max_attempts: int = Field(default=20, ge=1)
    backoff_initial: Duration = _seconds(1)
    backoff_max: Duration = _seconds(60)
    circuit: bool = True
    circuit_messages: int = Field(default=3, ge=2, le=100)
    circuit_failures: int = Field(default=10, ge=2, le=1000)
    circuit_probe_max: Duration = Field(default=_seconds(2), ge=_seconds(1))
    circuit_longest: Duration = Field(default=_seconds(86_400), ge=_seconds(1))
    retry_after_max: Duration = Field(default=_seconds(3_600), ge=_seconds(1), le=LONGEST_DELAY)
    retry_after_for: Duration = _seconds(86_400)
    envelope: EnvelopeName = "handler"
    error_detail: ErrorDetail = "codes"
    personal: Literal["encrypted", "plain"] = "encrypted"
    forgotten: Literal["call", "skip", "dead"] = "call"

    @property
    def python_module(self) -> str | None:
        """The module of a Python handler; None if the handler is a service."""
        scheme, _, module = self.handler.partition(":")
        return module if scheme == "python" else None

    @property
    def limit(self) -> Limit:
        """How many may run at once, and begin in a time. An operator may set another limit at run time."""
        interval = None if self.rate is None else parse_rate(self.rate)
        return Limit(concurrency=self.concurrency, interval=interval, per_key=self.rate_per_key)

    def consumer_spec(self) -> ConsumerSpec:
        """Return what the broker must hold."""
        return ConsumerSpec(**{field.name: getattr(self, field.name) for field in fields(ConsumerSpec)})


class QueriesSettings(Section):
    """The queries of other services that a context's workers answer, by request and reply.

    ``module``: a Python module with a `QueryBus`. ``subjects``: where it may answer, by default all below
    ``{context}.queries``. ``timeout``: for one answer; less if the caller waits less.
    """

    module: ModuleName
    subjects: Subjects = Field(min_length=1)
    timeout: Duration = _seconds(5)


class CloudEventsSettings(Section):
    """How a context with ``envelope = "cloudevents"`` writes its events.

    ``mode``: attributes in headers ("binary"), or all in the body ("structured"). The others are attributes, with
    {context}, {name}, {version} and {key}, the partition key. The default of ``source`` is the first token of the
    subject, behind a slash.
    """

    mode: Literal["binary", "structured"] = "binary"
    source: AttributeTemplate | None = None
    subject: AttributeTemplate | None = None
    dataschema: UriTemplate | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_the_mode(cls, data: object) -> object:
        """Read ``cloudevents = "structured"`` too."""
        return {"mode": data} if isinstance(data, str) else data


class ContextSettings(Section):
    """A bounded context: one database, its event streams, one DLQ stream, its subscriptions.

    ``name`` comes from the key. ``pooler_url``: the database through a pooler in transaction mode, for what needs
    no session. ``schema``: where its tables are, so that contexts may share a database. Without it, they are
    where the search_path of the role begins. ``microdao_schema``: where `relay db upgrade` makes the
    view ``outbox_events`` of MicroDAO, beside these tables. ``stream`` is its only event stream, ``streams`` are
    several, each under its name.
    By default dead letters are kept longer than events (30 days, 1 GB), because operators handle them. They have
    as many replicas as the events. ``error_detail`` applies to tasks, cron jobs, and subscriptions without their
    own value. ``system_actor``: who acts in a message-envelope, if the event names nobody. ``search``: by which
    fields of their payloads events of a type are found; `relay db index` makes the indexes. ``personal``: which
    fields of their payloads are encrypted, by type. ``expires_in``: how long events of a type are worth publishing
    and handling after they are due, if they say nothing themselves. ``payload_limit``: larger payloads, of up to
    64 MB, stay in the outbox, and messages refer to them. None: all are sent, as far as the broker takes them. A
    worker of an older release cannot read a reference, so nothing refers until this is set.
    """

    filled: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    database_url: DatabaseUrl
    pooler_url: DatabaseUrl | None = None
    #: The key ``schema``. A field cannot have that name: pydantic has a method of that name.
    own_schema: SchemaName | None = Field(default=None, alias="schema")
    subject: str = DEFAULT_TEMPLATE
    envelope: EnvelopeName = "handler"
    cloudevents: CloudEventsSettings = CloudEventsSettings()
    error_detail: ErrorDetail = "codes"
    system_actor: ActorId = "system"
    microdao_schema: SchemaName | None = None
    routes: Annotated[tuple[RouteSettings, ...], BeforeValidator(parse_list)] = ()
    stream: StreamSettings | None = None
    streams: dict[str, StreamSettings] = Field(default_factory=dict)
    dlq: StreamSettings
    publish: PublishSettings = PublishSettings()
    backpressure: BackpressureSettings = BackpressureSettings()
    alerts: AlertSettings = AlertSettings()
    archive: ArchiveSettings = ArchiveSettings()
    queries: QueriesSettings | None = None
    search: dict[SearchedType, SearchedFields] = Field(default_factory=dict)
    personal: dict[SearchedType, PersonalFieldsSettings] = Field(default_factory=dict)
    expires_in: dict[SearchedType, Duration] = Field(default_factory=dict)
    payload_limit: PayloadLimit | None = None
    subscriptions: dict[str, SubscriptionSettings] = Field(default_factory=dict)

    @property
    def database(self) -> str:
        """The address of the server, for the relay's own connections: these see the context's tables only."""
        path = () if self.own_schema is None else (self.own_schema,)
        return with_search_path(self.database_url.get_secret_value(), *path)

    @property
    def pooler(self) -> str | None:
        """The address for what needs no session, if there is a pooler. That has to know the schema."""
        return None if self.pooler_url is None else self.pooler_url.get_secret_value()

    @property
    def handler_database(self) -> str:
        """The same for sessions of the application's functions, which have tables of their own elsewhere."""
        path = () if self.own_schema is None else (self.own_schema, '"$user"', "public")
        return with_search_path(self.database_url.get_secret_value(), *path)

    @property
    def event_streams(self) -> tuple[StreamSettings, ...]:
        """The streams of the context's events."""
        return (*([self.stream] if self.stream else []), *self.streams.values())

    @property
    def inbox_limits(self) -> dict[str, int]:
        """The ``max_inbox`` of the subscriptions that have one."""
        return {name: it.max_inbox for name, it in self.subscriptions.items() if it.max_inbox is not None}

    @property
    def routing(self) -> Routing:
        """Where the context's events go."""
        return Routing(
            context=self.name,
            template=self.subject,
            streams={stream.name: stream.subjects for stream in self.event_streams},
            routes=tuple(row.route() for row in self.routes),
            unconfirmed=[subject for stream in self.event_streams if stream.no_ack for subject in stream.subjects],
            letters=self.dlq.subjects,
        )

    @property
    def look_after_every(self) -> timedelta:
        """How often the subscriptions are looked after: a quarter of the shortest ack wait at most."""
        return min([_LOOK_AFTER, *(it.ack_wait / 4 for it in self.subscriptions.values())])

    @property
    def look_after_quiet(self) -> timedelta:
        """The same while no subscription has unfinished messages."""
        return min([_LOOK_AFTER_QUIET, *(it.ack_wait / 4 for it in self.subscriptions.values())])

    def dead_letter_spec(self) -> ConsumerSpec:
        """Return the consumer that reads dead letters, to record them."""
        return dead_letter_consumer(self.name, self.dlq.name)

    @model_validator(mode="before")
    @classmethod
    def _fill_names(cls, data: object) -> object:
        if not isinstance(data, dict) or "name" not in data:
            return data
        name = str(data["name"])
        ttl = {"message_ttl": True} if data.get("expires_in") else {}
        streams = {key: _under({"name": key, **ttl}, it) for key, it in tables(data.get("streams"))}
        stream = {**ttl, "name": f"{name.upper()}_EVENTS", "subjects": [event_subjects(name)]}
        dlq = {
            "name": f"{name.upper()}_DLQ",
            "subjects": [dead_letter_subject(name, ">")],
            "max_age": timedelta(days=30),
            "max_bytes": 1024**3,
        }
        if copies := [it["replicas"] for _, it in tables({"": data.get("stream"), **streams}) if "replicas" in it]:
            dlq["replicas"] = max(copies, key=str)
        filled = {**data, "dlq": _under(dlq, data.get("dlq", {}))}
        if "stream" in data or not streams:
            filled["stream"] = _under(stream, data.get("stream", {}))
        if streams:
            filled["streams"] = {**data["streams"], **streams}
        if "queries" in data:
            filled["queries"] = _under({"subjects": [query_subjects(name)]}, data["queries"])
        if isinstance(subscriptions := data.get("subscriptions"), dict):
            common = {"error_detail": data["error_detail"]} if "error_detail" in data else {}
            filled["subscriptions"] = {
                key: _under({"durable": f"{name}__{key}", **common}, value, name=key, context=name)
                for key, value in subscriptions.items()
            }
        return filled


class Settings(Section):
    """The whole configuration. `load_settings` builds it; tests may construct it directly.

    ``actor_modules``: your modules with tasks and cron jobs, for the workers to import. Our own are always loaded.
    ``release``: the release of your application, which the members of a fleet show beside jetrelay's own.
    ``scheduler_lease``: how long a context may be without a leader when its scheduler dies.
    ``task_window``: how many tasks of a queue wait in Redis. The others wait in PostgreSQL, by priority.
    ``pull_bytes``: how many bytes from NATS a worker process may hold at a time, for all its subscriptions.
    ``max_connections``: how many connections a process has to one PostgreSQL server at most, for all contexts.
    None: a fair part of a third of what the server allows.
    ``outage_errors``: exceptions of Python functions that say that something is away, besides those that are
    known: ``package.Class``. ``fleet``: the supervisor that has started this process. `relay fleet` sets it for
    its workers. ``failpoints``: for tests of jetrelay itself, see `relay.failpoints`. No service sets it.
    """

    nats_url: NatsUrl = SecretStr("nats://localhost:4222")
    nats: NatsSettings = NatsSettings()
    redis_url: RedisUrl = SecretStr("redis://localhost:6379/0")
    redis: RedisSettings = RedisSettings()
    redis_namespace: str = Field(default="relay", pattern=r"^[A-Za-z0-9_:-]{1,64}$")
    actor_modules: Annotated[Modules, AfterValidator(_with_own)] = OWN_ACTOR_MODULES
    release: str = Field(default="", pattern=r"^[A-Za-z0-9._+-]{0,40}$")
    log_level: LogLevel = "INFO"
    log_format: Literal["auto", "console", "json"] = "auto"
    scheduler_lease: Duration = Field(default=_seconds(5), ge=_seconds(2), le=_seconds(60))
    task_window: int = Field(default=200, ge=1, le=100_000)
    pull_bytes: Size = Field(default=32 * 1024**2, ge=1024**2)
    max_connections: int | None = Field(default=None, ge=4, le=10_000)
    outage_errors: ErrorNames = ()
    fleet: str | None = Field(default=None, pattern=r"^[0-9a-f]{1,32}-[0-9]{1,10}$")
    failpoints: DirectoryPath | None = None
    metrics: MetricsSettings = MetricsSettings()
    health: HealthSettings = HealthSettings()
    tracing: TracingSettings = TracingSettings()
    ops: OpsSettings = OpsSettings()
    personal: PersonalSettings = PersonalSettings()
    payloads: PayloadsSettings = PayloadsSettings()
    contexts: dict[str, ContextSettings] = Field(default_factory=dict)

    #: The origin of each value, by key path. A value that is not listed is a default.
    _origins: dict[tuple[str, ...], str] = PrivateAttr(default_factory=dict)

    @property
    def user_modules(self) -> tuple[str, ...]:
        """The actor modules that are not ours."""
        return tuple(name for name in self.actor_modules if name not in OWN_ACTOR_MODULES)

    @property
    def pull_bytes_each(self) -> int:
        """The share of ``pull_bytes`` for a subscription, or for the dead letters of a context that consumes."""
        consuming = [found.subscriptions for found in self.contexts.values() if found.subscriptions]
        return self.pull_bytes // max(1, len(consuming) + sum(map(len, consuming)))

    def streams(self, context: str | None = None) -> list[StreamSpec]:
        """Return the streams of one context, or of all (None), and the shared stream of advisories.

        Raises UnknownContext.
        """
        chosen = self._chosen(context)
        declared = [stream.spec() for found in chosen for stream in (*found.event_streams, found.dlq)]
        events = [stream for found in self.contexts.values() for stream in found.event_streams]
        copies = max((stream.replicas for stream in events), default=1)
        return list(dict.fromkeys([*declared, replace(RELAY_ADVISORIES, replicas=copies)]))

    @property
    def letter_streams(self) -> frozenset[str]:
        """The streams that hold dead letters only, of all contexts."""
        contexts = self.contexts.values()
        return frozenset(it.dlq.name for it in contexts) - {
            it.name for found in contexts for it in found.event_streams
        }

    def queried(self) -> list[str]:
        """Return the patterns of the subjects at which queries are answered."""
        own = [it for found in self.contexts.values() if found.queries for it in found.queries.subjects]
        keys = [keys_subject(name) for name in self.contexts if self.answers_for_keys(name)]
        limited = [name for name, found in self.contexts.items() if found.payload_limit is not None]
        return own + keys + [payloads_subject(name) for name in limited]

    @property
    def asks(self) -> list[str]:
        """The patterns of the subjects at which this configuration asks other services."""
        keys = [] if self.personal.master is None else [keys_subject("*")]
        contexts = self.contexts.values()
        own = {stream.name for found in contexts for stream in found.event_streams}
        others = any(it.stream not in own for found in contexts for it in found.subscriptions.values())
        return keys + ([payloads_subject("*")] if others else [])

    def answers_for_keys(self, context: str) -> bool:
        """Whether the workers of a context answer for the keys of personal values."""
        return self.personal.master is not None or bool(self.contexts[context].personal)

    def outlived(self, context: str) -> list[str]:
        """Return the contexts that send events to this one, and keep them for longer than it keeps the ids.

        Raises UnknownContext.
        """
        [own] = self._chosen(context)
        if own.archive.keep is None:
            return []
        read = {subscription.stream for subscription in own.subscriptions.values()}
        return [
            name
            for name, source in self.contexts.items()
            if read & {stream.name for stream in source.event_streams}
            and (source.archive.keep is None or source.archive.keep > own.archive.keep)
        ]

    def comes_later(self, context: str, subscription: str) -> bool:
        """Whether an earlier subscription reads some of the same messages, for the same inbox or service."""
        own = self.contexts[context].subscriptions[subscription]
        declared = (it for found in self.contexts.values() for it in found.subscriptions.values())
        return any(
            it.stream == own.stream
            and subjects_overlap(it.filter_subject, own.filter_subject)
            and (it.context == context or (it.handler == own.handler and own.python_module is None))
            for it in takewhile(lambda it: it is not own, declared)
        )

    def consumers(self, context: str | None = None) -> list[ConsumerSpec]:
        """Return the durable consumers of one context, or of all (None).

        Each subscription has one for its messages and one for its advisories. Each context with subscriptions has
        one for its dead letters. Raises UnknownContext.
        """
        consuming = [found for found in self._chosen(context) if found.subscriptions]
        declared = [sub.consumer_spec() for found in consuming for sub in found.subscriptions.values()]
        letters = [found.dead_letter_spec() for found in consuming]
        return [*declared, *map(advisory_consumer, declared), *letters]

    def _chosen(self, context: str | None) -> list[ContextSettings]:
        return list(self.contexts.values()) if context is None else [of_context(self.contexts, context)]

    @model_validator(mode="before")
    @classmethod
    def _name_contexts(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(contexts := data.get("contexts"), dict):
            return data
        return {**data, "contexts": {key: _under({}, value, name=key) for key, value in contexts.items()}}


def tables(value: object) -> list[tuple[str, dict[str, Any]]]:
    """The tables in a table. Anything else in it is left to validation."""
    return [(key, it) for key, it in value.items() if isinstance(it, dict)] if isinstance(value, dict) else []


def _under(defaults: dict[str, Any], value: object, **fixed: str) -> object:
    """Merge a table over its defaults. A value that is not a table stays, and validation refuses it."""
    return {**defaults, **value, **fixed} if isinstance(value, dict) else value
