"""Rules between keys: values that are valid alone but cannot work together. Each rule yields its problems."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations

from relay.domain.routing import dead_letter_subject
from relay.domain.topology import covers, subjects_overlap
from relay.settings.archive import OF_BUCKET
from relay.settings.credentials import HttpSettings, check_http, check_nats, check_redis
from relay.settings.model import ContextSettings, PublishSettings, Settings, SubscriptionSettings
from relay.settings.problems import KeyPath, SettingProblem
from relay.settings.stream_rules import all_streams, check_exchange, check_streams
from relay.settings.urls import database_of
from relay.settings.values import format_duration

Problems = Iterator[SettingProblem]


def check(settings: Settings) -> list[SettingProblem]:
    """Return all problems of settings whose single values are valid."""
    problems: list[SettingProblem] = []
    for context in settings.contexts.values():
        for rule in (
            _cloudevents,
            _back_off,
            _filters,
            _handler_time,
            _handler_kind,
            _on_failure,
            _order,
            _dead_letters,
            _archive,
            _backpressure,
        ):
            problems += rule(context)
    for over_all in (
        _databases,
        check_streams,
        check_exchange,
        _durables,
        _filters_reach,
        _archived_streams,
        _metrics,
        _credentials,
    ):
        problems += over_all(settings)
    return problems


# --- one context ---


def _at(context: ContextSettings, *keys: str) -> KeyPath:
    return ("contexts", context.name, *keys)


def _sub(subscription: SubscriptionSettings, *keys: str) -> KeyPath:
    return ("contexts", subscription.context, "subscriptions", subscription.name, *keys)


def _cloudevents(context: ContextSettings) -> Problems:
    """Refuse keys that have no effect."""
    if context.envelope != "cloudevents":
        for key in sorted(context.cloudevents.model_fields_set):
            yield SettingProblem(_at(context, "cloudevents", key), 'is only for envelope = "cloudevents"')


def _back_off(context: ContextSettings) -> Problems:
    sections: list[tuple[KeyPath, PublishSettings | SubscriptionSettings]] = [
        (_at(context, "publish"), context.publish),
        *((_sub(subscription), subscription) for subscription in context.subscriptions.values()),
    ]
    for path, section in sections:
        if section.backoff_initial > section.backoff_max:
            limit = format_duration(section.backoff_max)
            yield SettingProblem((*path, "backoff_initial"), f"must not be longer than backoff_max ({limit})")


def _filters(context: ContextSettings) -> Problems:
    """Check that filters do not overlap. The inbox key is only the message id, so one receiver would miss it."""
    for one, other in combinations(context.subscriptions.values(), 2):
        if subjects_overlap(one.filter_subject, other.filter_subject):
            yield SettingProblem(
                _sub(other, "filter_subject"),
                f"overlaps with {one.filter_subject} of the subscription {one.name}",
                "a context receives each message once: merge them, or use filters that do not overlap",
            )


def _handler_time(context: ContextSettings) -> Problems:
    for subscription in context.subscriptions.values():
        if subscription.settle == "handler" and subscription.handler_timeout >= subscription.ack_wait:
            limit = format_duration(subscription.ack_wait)
            yield SettingProblem(
                _sub(subscription, "handler_timeout"),
                f"must be shorter than ack_wait ({limit})",
                "otherwise JetStream delivers again while the handler still works",
            )


def _handler_kind(context: ContextSettings) -> Problems:
    """Refuse keys that have no effect because they are for the other kind of handler."""
    for subscription in context.subscriptions.values():
        python = subscription.python_module is not None
        for key in ("connect_timeout", *HttpSettings.model_fields) if python else ("unknown",):
            if key in subscription.model_fields_set:
                other = "an http:// handler" if python else "a python: handler"
                yield SettingProblem(_sub(subscription, key), f"is only for {other}")


def _on_failure(context: ContextSettings) -> Problems:
    """Check that a NAK has an effect: the message is open, and may be delivered as often as it fails."""
    for subscription in context.subscriptions.values():
        if subscription.on_failure != "nak":
            continue
        if subscription.settle == "inbox":
            yield SettingProblem(
                _sub(subscription, "on_failure"),
                'must be "silence" with settle = "inbox"',
                "a message that is acknowledged when it is stored cannot be given back",
            )
        elif 0 < subscription.max_deliver < subscription.max_attempts:
            yield SettingProblem(
                _sub(subscription, "max_deliver"),
                f'must be at least max_attempts ({subscription.max_attempts}) with on_failure = "nak", or -1',
                "each failed attempt leads to one more delivery",
            )


def _order(context: ContextSettings) -> Problems:
    for subscription in context.subscriptions.values():
        if subscription.order == "none" and "failed_head" in subscription.model_fields_set:
            yield SettingProblem(
                _sub(subscription, "failed_head"),
                "is only for ordered subscriptions",
                'nothing waits behind a failed message here; add order = "key" or leave it out',
            )


def _dead_letters(context: ContextSettings) -> Problems:
    """Check that the DLQ stream accepts every dead letter: without a stream a dead letter would be lost."""
    subjects = context.dlq.subjects
    if not any(subjects_overlap(subject, dead_letter_subject(context.name, ">")) for subject in subjects):
        message = f"no dead letter reaches it: their subjects are {context.name}.dlq.…"
        yield SettingProblem(_at(context, "dlq", "subjects"), message)
        return
    for subscription in context.subscriptions.values():
        letters = dead_letter_subject(context.name, subscription.filter_subject)
        if not any(covers(subject, letters) for subject in subjects):
            yield SettingProblem(
                _at(context, "dlq", "subjects"),
                f"does not take the dead letters of the subscription {subscription.name} ({letters})",
            )


def _archive(context: ContextSettings) -> Problems:
    archive = context.archive
    at = partial(_at, context, "archive")
    if archive.after is not None and archive.place is None:
        yield SettingProblem(at("directory"), "is required", "or bucket: the place for archived rows")
    elif archive.place is not None and archive.after is None:
        yield SettingProblem(at("after"), "is required", 'for example after = "90d"')
    if archive.directory is not None:
        for key in sorted(archive.model_fields_set & OF_BUCKET):
            yield SettingProblem(at(key), "is not for a directory", "give bucket or directory, not both")
    if (archive.access_key_id is None) != (archive.secret_access_key is None):
        yield SettingProblem(at("access_key_id"), "goes together with secret_access_key")
    if archive.keep is not None and archive.after is not None and archive.keep <= archive.after:
        least = format_duration(archive.after)
        yield SettingProblem(
            at("keep"), f"must be longer than after ({least})", "both times begin when a row ended"
        )


def _backpressure(context: ContextSettings) -> Problems:
    section = context.backpressure
    if section.model_fields_set and not section.limits().any:
        yield SettingProblem(
            _at(context, "backpressure", "above"), "is required, or age", "for example above = 100000"
        )


# --- all contexts together ---


def _databases(settings: Settings) -> Problems:
    """Check that contexts do not share tables: they would publish each other's events.

    A context without ``schema`` has its tables where the search_path of its role begins. That may be the schema of
    another one, so in a shared database each must say it.
    """
    for one, other in combinations(settings.contexts.values(), 2):
        if _database(one) == _database(other) and None in (one.own_schema, other.own_schema):
            yield SettingProblem(
                _at(other, "database_url"),
                f"is also the database of the context {one.name}",
                "give each context its own ({context} in DATABASE_URL stands for its name), or each a schema",
            )
    taken: dict[tuple[tuple[str, str], str], str] = {}
    for context in settings.contexts.values():
        for key, schema in (("schema", context.own_schema), ("microdao_schema", context.microdao_schema)):
            if schema is None:
                continue
            place, where = (_database(context), schema), _at(context, key)
            if place in taken:
                yield SettingProblem(where, f"{schema} is also {taken[place]}, in the same database")
            taken.setdefault(place, ".".join(where))


def _database(context: ContextSettings) -> tuple[str, str]:
    return database_of(context.database_url.get_secret_value())


def _all_subscriptions(settings: Settings) -> list[SubscriptionSettings]:
    return [sub for context in settings.contexts.values() for sub in context.subscriptions.values()]


def _durables(settings: Settings) -> Problems:
    """Check that no two subscriptions share a durable consumer: they would take each other's messages."""
    for one, other in combinations(_all_subscriptions(settings), 2):
        if (one.stream, one.durable) == (other.stream, other.durable):
            owner = ".".join(_sub(one))
            yield SettingProblem(
                _sub(other, "durable"), f"{other.durable} on {other.stream} belongs to {owner} already"
            )


def _filters_reach(settings: Settings) -> Problems:
    """Check that filters match their stream: nats-server 2.15 silently accepts others and delivers nothing."""
    declared = {stream.name: stream for _, stream in all_streams(settings)}
    for subscription in _all_subscriptions(settings):
        stream = declared.get(subscription.stream)
        wanted = subscription.filter_subject
        if stream and not any(subjects_overlap(wanted, subject) for subject in stream.subjects):
            message = f"{wanted} is outside {stream.name}, which holds {', '.join(stream.subjects)}"
            yield SettingProblem(_sub(subscription, "filter_subject"), message)


def _metrics(settings: Settings) -> Problems:
    """Check that the counts of worker processes can be added up: Prometheus reads them at one address."""
    if settings.metrics.worker is not None and settings.metrics.directory is None:
        message = "is required if metrics.worker is set"
        yield SettingProblem(("metrics", "directory"), message, 'for example "/run/jetrelay", for this host only')


def _archived_streams(settings: Settings) -> Problems:
    """Check that rows outlive their messages: a redelivered message is then known, and a lost one still stored.

    Streams that are declared elsewhere are checked at run time, before anything is archived.
    """
    declared = {stream.name: stream for _, stream in all_streams(settings)}
    for context in settings.contexts.values():
        if (after := context.archive.after) is None:
            continue
        read = {subscription.stream for subscription in context.subscriptions.values()}
        for name in sorted({*context.routing.streams} | read & declared.keys()):
            age = declared[name].max_age
            if age is None or age >= after:
                keeps = "for ever" if age is None else f"for {format_duration(age)}"
                yield SettingProblem(
                    _at(context, "archive", "after"),
                    f"must be longer than the max_age of {name}, which keeps messages {keeps}",
                    "rows must be kept longer than their messages: a message that comes again must be recognised",
                )


def _credentials(settings: Settings) -> Problems:
    yield from check_nats(settings.nats, settings.nats_url.get_secret_value())
    yield from check_redis(settings.redis, settings.redis_url.get_secret_value())
    for context in settings.contexts.values():
        alerts = context.alerts
        webhook = alerts.webhook.get_secret_value() if alerts.webhook else ""
        yield from check_http(_at(context, "alerts"), alerts, webhook, "webhook")
        for subscription in context.subscriptions.values():
            if subscription.python_module is None:
                yield from check_http(_sub(subscription), subscription, subscription.handler, "handler")
