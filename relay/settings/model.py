"""Every key of the configuration, its default and its own limits. `rules` checks keys against each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from importlib.machinery import PathFinder
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BeforeValidator,
    DirectoryPath,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from relay.domain.errors import of_context
from relay.domain.ordering import FailedHead
from relay.domain.routing import DEFAULT_TEMPLATE, Routing, dead_letter_subject, event_subjects
from relay.domain.topology import (
    RELAY_ADVISORIES,
    ConsumerSpec,
    StreamSpec,
    advisory_consumer,
    dead_letter_consumer,
)
from relay.settings.access import HttpSettings, NatsSettings, RedisSettings
from relay.settings.metrics import MetricsSettings
from relay.settings.section import Section
from relay.settings.urls import DatabaseUrl, HandlerUrl, NatsUrl, RedisUrl, WebhookUrl
from relay.settings.values import AbsolutePath, Age, BrokerName, Count, Duration, Modules, Size, Subject, Subjects

Envelope = Literal["handler", "message-envelope", "cloudevents", "raw"]
#: What is kept of a failure: codes and places, or also up to 500 bytes of the answer's or exception's text.
ErrorDetail = Literal["codes", "text"]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]
_ACTOR_MODULES: Final = ("tasks.actors", "consumer.actors")


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def installed_actor_modules() -> tuple[str, ...]:
    """The installed ones of our own actor modules, found without importing them."""
    found = []
    for module in _ACTOR_MODULES:
        package = PathFinder.find_spec(module.partition(".")[0])
        if package and PathFinder.find_spec(module, package.submodule_search_locations):
            found.append(module)
    return tuple(found)


class StreamSettings(Section):
    """A JetStream stream. File storage, retention ``limits`` and discard ``new`` cannot be changed.

    ``max_age`` "unlimited" keeps messages for ever. ``replicas``: 3 in production.
    """

    name: BrokerName
    subjects: Subjects = Field(min_length=1)
    max_age: Age = timedelta(days=7)
    max_bytes: Size = 10 * 1024**3
    max_msgs_per_subject: Count = -1
    replicas: int = Field(default=1, ge=1, le=5)
    duplicate_window: Duration = Field(default=_seconds(120), ge=timedelta(milliseconds=100))

    def spec(self) -> StreamSpec:
        """Return what the broker must hold."""
        return StreamSpec(**self.model_dump())


class PublishSettings(Section):
    """How a context's outbox is published (CMD-050).

    ``batch_bytes``: a batch ends with the event that brings it to this size of text; a larger event goes alone. A
    worker holds two batches of each shard, and a few copies of them. ``ack_timeout``: how long the broker may be
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


class AlertSettings(HttpSettings):
    """Where alerts about dead letters go.

    ``webhook`` gets a POST with JSON, at most ``per_minute`` times a minute. Alerts that come faster are combined.
    """

    webhook: WebhookUrl | None = None
    per_minute: int = Field(default=6, ge=1, le=60)


class ArchiveSettings(Section):
    """When and where rows are archived: ``after`` counts from published, processed, closed or finished.

    ``after`` must be longer than any stream keeps messages. ``directory`` must exist on every worker.
    """

    after: Duration | None = None
    directory: AbsolutePath | None = None


class SubscriptionSettings(HttpSettings):
    """A durable consumer and its handler (CMD-051). ``name`` and ``context`` come from the keys.

    ``handler`` is a URL, or ``python:`` and a module. ``handler_timeout`` is the total for one call.
    ``max_attempts`` counts handler calls; ``max_deliver`` counts JetStream's deliveries. ``settle``: acknowledge
    to JetStream after the handler's answer ("handler"), or after the inbox row is committed ("inbox").
    ``unknown``: what to do with an event for which the Python module has no handler. ``order``: with "key", the
    messages of one partition key are handled one after the other. ``failed_head``: what to do with the messages
    behind a dead letter. ``chunk``: how many messages a worker may take together; each has its own verdict.
    ``error_detail``: "text" keeps the text of answers and exceptions, which may hold payload, in columns, logs and
    alerts. The default is the context's.
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
    settle: Literal["handler", "inbox"] = "handler"
    handler: HandlerUrl
    unknown: Literal["dead-letter", "skip", "retry"] = "dead-letter"
    order: Literal["none", "key"] = "none"
    failed_head: FailedHead = "block"
    chunk: int = Field(default=1, ge=1, le=500)
    handler_timeout: Duration = _seconds(30)
    connect_timeout: Duration = _seconds(5)
    max_attempts: int = Field(default=20, ge=1)
    backoff_initial: Duration = _seconds(1)
    backoff_max: Duration = _seconds(60)
    envelope: Envelope = "handler"
    error_detail: ErrorDetail = "codes"

    @property
    def python_module(self) -> str | None:
        """The module of a Python handler; None if the handler is a service."""
        scheme, _, module = self.handler.partition(":")
        return module if scheme == "python" else None

    def consumer_spec(self) -> ConsumerSpec:
        """Return what the broker must hold."""
        return ConsumerSpec(
            stream=self.stream,
            durable=self.durable,
            filter_subject=self.filter_subject,
            ack_wait=self.ack_wait,
            max_deliver=self.max_deliver,
            max_ack_pending=self.max_ack_pending,
        )


class ContextSettings(Section):
    """A bounded context: one database, one event stream, one DLQ stream, its subscriptions.

    ``name`` comes from the key. By default dead letters are kept longer than events (30 days, 1 GB), because
    operators handle them. They have as many replicas as the events. ``error_detail`` applies to tasks, cron jobs,
    and subscriptions without their own value.
    """

    filled: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str
    database_url: DatabaseUrl
    subject: str = DEFAULT_TEMPLATE
    envelope: Envelope = "handler"
    error_detail: ErrorDetail = "codes"
    stream: StreamSettings
    dlq: StreamSettings
    publish: PublishSettings = PublishSettings()
    alerts: AlertSettings = AlertSettings()
    archive: ArchiveSettings = ArchiveSettings()
    subscriptions: dict[str, SubscriptionSettings] = Field(default_factory=dict)

    @property
    def routing(self) -> Routing:
        """Where the context's events go."""
        streams = {self.stream.name: self.stream.subjects}
        return Routing(context=self.name, template=self.subject, streams=streams)

    def dead_letter_spec(self) -> ConsumerSpec:
        """Return the consumer that reads dead letters, to record them."""
        return dead_letter_consumer(self.name, self.dlq.name)

    @model_validator(mode="before")
    @classmethod
    def _fill_names(cls, data: object) -> object:
        if not isinstance(data, dict) or "name" not in data:
            return data
        name = str(data["name"])
        stream = {"name": f"{name.upper()}_EVENTS", "subjects": [event_subjects(name)]}
        dlq = {
            "name": f"{name.upper()}_DLQ",
            "subjects": [dead_letter_subject(name, ">")],
            "max_age": timedelta(days=30),
            "max_bytes": 1024**3,
        }
        if isinstance(declared := data.get("stream"), dict) and "replicas" in declared:
            dlq["replicas"] = declared["replicas"]
        filled = {
            **data,
            "stream": _under(stream, data.get("stream", {})),
            "dlq": _under(dlq, data.get("dlq", {})),
        }
        if isinstance(subscriptions := data.get("subscriptions"), dict):
            common = {"error_detail": data["error_detail"]} if "error_detail" in data else {}
            filled["subscriptions"] = {
                key: _under({"durable": f"{name}__{key}", **common}, value, name=key, context=name)
                for key, value in subscriptions.items()
            }
        return filled


class Settings(Section):
    """The whole configuration. `load_settings` builds it; tests may construct it directly.

    ``scheduler_lease``: how long a context may be without a leader when its scheduler dies.
    ``task_window``: how many tasks of a queue wait in Redis. The others wait in PostgreSQL, by priority.
    ``pull_bytes``: how many bytes from NATS a worker process may hold at a time, for all its subscriptions.
    ``failpoints``: for tests of jetrelay itself, see `relay.failpoints`. No service sets it.
    """

    nats_url: NatsUrl = SecretStr("nats://localhost:4222")
    nats: NatsSettings = NatsSettings()
    redis_url: RedisUrl = SecretStr("redis://localhost:6379/0")
    redis: RedisSettings = RedisSettings()
    redis_namespace: str = Field(default="relay", pattern=r"^[A-Za-z0-9_:-]{1,64}$")
    actor_modules: Modules = Field(default_factory=installed_actor_modules)
    log_level: LogLevel = "INFO"
    log_format: Literal["auto", "console", "json"] = "auto"
    scheduler_lease: Duration = Field(default=_seconds(5), ge=_seconds(2), le=_seconds(60))
    task_window: int = Field(default=200, ge=1, le=100_000)
    pull_bytes: Size = Field(default=32 * 1024**2, ge=1024**2)
    failpoints: DirectoryPath | None = None
    metrics: MetricsSettings = MetricsSettings()
    contexts: dict[str, ContextSettings] = Field(default_factory=dict)

    #: The origin of each value, by key path. A value that is not listed is a default.
    _origins: dict[tuple[str, ...], str] = PrivateAttr(default_factory=dict)

    @property
    def user_modules(self) -> tuple[str, ...]:
        """The actor modules that are not ours."""
        return tuple(name for name in self.actor_modules if name not in _ACTOR_MODULES)

    @property
    def pull_share(self) -> int:
        """The share of ``pull_bytes`` for a subscription, or for the dead letters of a context that consumes."""
        consuming = [found.subscriptions for found in self.contexts.values() if found.subscriptions]
        return self.pull_bytes // max(1, len(consuming) + sum(map(len, consuming)))

    def streams(self, context: str | None = None) -> list[StreamSpec]:
        """Return the streams of one context, or of all (None), and the shared stream of advisories.

        Raises UnknownContext.
        """
        declared = [spec for found in self._chosen(context) for spec in (found.stream.spec(), found.dlq.spec())]
        copies = max((found.stream.replicas for found in self.contexts.values()), default=1)
        return list(dict.fromkeys([*declared, replace(RELAY_ADVISORIES, replicas=copies)]))

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


def _under(defaults: dict[str, Any], value: object, **fixed: str) -> object:
    """Merge a table over its defaults. A value that is not a table stays, and validation refuses it."""
    return {**defaults, **value, **fixed} if isinstance(value, dict) else value
