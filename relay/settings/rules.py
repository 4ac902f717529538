"""Rules between keys: values that are valid alone but cannot work together. Each rule yields its problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from string import Formatter
from typing import Final

from relay.domain.alerts import OF_SUBSCRIPTION, AlertClass
from relay.domain.controls import LONGEST_OF_KEY
from relay.domain.routing import dead_letter_subject, event_subjects, is_template
from relay.domain.subject import ALL_COMMANDS, ALL_LETTERS
from relay.domain.topology import RELAY_ADVISORIES, covers, subjects_overlap
from relay.settings.archive import OF_BUCKET
from relay.settings.credentials import HttpSettings, check_http, check_nats, check_redis
from relay.settings.model import (
    ContextSettings,
    PublishSettings,
    RouteSettings,
    Settings,
    StreamSettings,
    SubscriptionSettings,
)
from relay.settings.problems import KeyPath, SettingProblem
from relay.settings.urls import database_of
from relay.settings.values import format_duration

Problems = Iterator[SettingProblem]


def check(settings: Settings) -> list[SettingProblem]:
    """Return all problems of settings whose single values are valid."""
    problems = [it for rule in _OF_ALL for it in rule(settings)]
    for context in settings.contexts.values():
        problems += [it for rule in _OF_CONTEXT for it in rule(context)]
        for subscription in context.subscriptions.values():
            problems += [it for rule in _OF_SUBSCRIPTION for it in rule(subscription)]
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


def _plain_values(settings: Settings) -> Problems:
    if settings.personal.master is None:
        for context in settings.contexts.values():
            for it in context.subscriptions.values():
                if it.personal == "plain":
                    yield SettingProblem(
                        _sub(it, "personal"), "needs a master key", "[personal] master and masters"
                    )


def _handler_time(subscription: SubscriptionSettings) -> Problems:
    if subscription.settle == "handler" and subscription.handler_timeout >= subscription.ack_wait:
        limit = format_duration(subscription.ack_wait)
        yield SettingProblem(
            _sub(subscription, "handler_timeout"),
            f"must be shorter than ack_wait ({limit})",
            "otherwise JetStream delivers again while the handler still works",
        )


def _limit(subscription: SubscriptionSettings) -> Problems:
    """Refuse a rate per key without a rate, or one for which the rows of keys would have to be kept for long."""
    limit = subscription.limit
    if limit.per_key and (limit.interval is None or limit.interval > LONGEST_OF_KEY):
        yield SettingProblem(_sub(subscription, "rate_per_key"), "needs a rate of at least 1/1d", 'rate = "10/1m"')


def _handler_kind(subscription: SubscriptionSettings) -> Problems:
    """Refuse keys that have no effect because they are for the other kind of handler."""
    python = subscription.python_module is not None
    for key in ("connect_timeout", *HttpSettings.model_fields) if python else ("unknown", "unknown_for"):
        if key in subscription.model_fields_set:
            other = "an http:// handler" if python else "a python: handler"
            yield SettingProblem(_sub(subscription, key), f"is only for {other}")


def _on_failure(subscription: SubscriptionSettings) -> Problems:
    """Check that a NAK has an effect: the message is open, and may be delivered as often as it fails."""
    if subscription.on_failure != "nak":
        return
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


def _order(subscription: SubscriptionSettings) -> Problems:
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


def _alerts(context: ContextSettings) -> Problems:
    """Refuse alerts that can never come."""
    alerts = context.alerts
    if alerts.webhook is None:
        for key in sorted(alerts.model_fields_set & {"per_minute", "classes", "subscriptions"}):
            yield SettingProblem(_at(context, "alerts", key), "has no effect: there is no webhook")
        return
    possible = _possible(context)
    for kind in alerts.classes:
        if kind not in possible:
            known = ", ".join(it.value for it in AlertClass if it in possible)
            yield SettingProblem(
                _at(context, "alerts", "classes"), f"{kind.value} can never come here", f"possible: {known}"
            )
    for name in alerts.subscriptions:
        if name not in context.subscriptions:
            known = ", ".join(context.subscriptions) or "none"
            yield SettingProblem(
                _at(context, "alerts", "subscriptions"), f"no subscription is called {name}", f"known: {known}"
            )
    never = sorted(set(alerts.classes) - OF_SUBSCRIPTION) if alerts.subscriptions else ()
    if never:
        yield SettingProblem(
            _at(context, "alerts", "classes"),
            f"{', '.join(never)} can never come: no such alert is about a subscription",
            "leave out these classes, or subscriptions",
        )
    if alerts.repeat < alerts.check_every:
        least = format_duration(alerts.check_every)
        yield SettingProblem(
            _at(context, "alerts", "repeat"), f"must be at least check_every ({least})", "nobody looks more often"
        )


def _possible(context: ContextSettings) -> set[AlertClass]:
    """The classes of alerts that a context can have."""
    parks = any(it.order == "key" and it.failed_head == "park" for it in context.subscriptions.values())
    # A correction of a task may fail without any subscription.
    never = set() if context.subscriptions else {AlertClass.DEAD_LETTER}
    return set(AlertClass) - never - (set() if parks else {AlertClass.PARKED_KEY})


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
    declared = {stream.name: stream for _, stream in _all_streams(settings)}
    for subscription in _all_subscriptions(settings):
        stream = declared.get(subscription.stream)
        pattern = subscription.filter_subject
        if stream and not any(subjects_overlap(pattern, subject) for subject in stream.subjects):
            message = f"{pattern} is outside {stream.name}, which holds {', '.join(stream.subjects)}"
            yield SettingProblem(_sub(subscription, "filter_subject"), message)


def _renamed(settings: Settings) -> Problems:
    """Check that subscriptions follow streams that a prefix renames: the old name would deliver nothing."""
    for name, context in settings.contexts.items():
        usual = {f"{name.upper()}_DLQ": context.dlq.name}
        if context.stream is not None:
            usual[f"{name.upper()}_EVENTS"] = context.stream.name
        places = {f"{name.upper()}_EVENTS": "stream", f"{name.upper()}_DLQ": "dlq"}
        for subscription in _all_subscriptions(settings):
            now = usual.get(subscription.stream, subscription.stream)
            if now == subscription.stream or subscription.stream in {it.name for _, it in _all_streams(settings)}:
                continue
            origin = settings._origins.get(("contexts", name, places[subscription.stream], "name"))  # noqa: SLF001
            if origin == "env NATS_STREAM_PREFIX":
                message = f"NATS_STREAM_PREFIX calls {subscription.stream} {now}"
                yield SettingProblem(_sub(subscription, "stream"), message, f'write stream = "{now}"')


def _metrics(settings: Settings) -> Problems:
    """Check that the counts of worker processes can be added up: Prometheus reads them at one address."""
    if settings.metrics.worker is not None and settings.metrics.directory is None:
        message = "is required if metrics.worker is set"
        yield SettingProblem(("metrics", "directory"), message, 'for example "/run/jetrelay", for this host only')


def _archived_streams(settings: Settings) -> Problems:
    """Check that rows outlive their messages: a redelivered message is then known, and a lost one still stored.

    Streams that are declared elsewhere are checked at run time, before anything is archived.
    """
    declared = {stream.name: stream for _, stream in _all_streams(settings)}
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


# --- streams ---


def _all_streams(settings: Settings) -> list[tuple[KeyPath, StreamSettings]]:
    """Return every declared stream, and where."""
    found: list[tuple[KeyPath, StreamSettings]] = []
    for context in settings.contexts.values():
        here = ("contexts", context.name)
        found += [((*here, "stream"), context.stream)] if context.stream else []
        found += [((*here, "streams", key), stream) for key, stream in context.streams.items()]
        found += [((*here, "dlq"), context.dlq)]
    return found


def _streams(settings: Settings) -> Problems:
    """Check that a name means one stream and a subject goes to one stream (else JetStream answers 10065)."""
    for path, stream in _all_streams(settings):
        yield from _stream(path, stream)
    for (first, one), (second, other) in combinations(_all_streams(settings), 2):
        where = ".".join(first)
        if one.name == other.name and one != other:
            yield SettingProblem((*second, "name"), f"{other.name} is declared differently at {where}")
        elif one.name != other.name and (pair := _meeting(one.subjects, other.subjects)):
            yield SettingProblem(
                (*second, "subjects"), f"{pair[1]} overlaps with {pair[0]} of {one.name} ({where})"
            )


def _stream(path: KeyPath, stream: StreamSettings) -> Problems:
    if stream.name == RELAY_ADVISORIES.name:
        yield SettingProblem((*path, "name"), f"{stream.name} is jetrelay's own stream")
    if stream.max_age is not None and stream.duplicate_window > stream.max_age:
        window, age = format_duration(stream.duplicate_window), format_duration(stream.max_age)
        if "duplicate_window" in stream.model_fields_set:
            yield SettingProblem((*path, "duplicate_window"), f"must not be longer than max_age ({age})")
        else:
            yield SettingProblem((*path, "max_age"), f"must not be shorter than duplicate_window ({window})")
    if stream.no_ack and path[-1] == "dlq":
        yield SettingProblem(
            (*path, "no_ack"), "must not be set: a dead letter is lost unless its stream confirms it"
        )


# --- ways to them ---


def _ways(settings: Settings) -> Problems:
    """Check that every event has a stream."""
    events = [stream for context in settings.contexts.values() for stream in context.event_streams]
    for context in settings.contexts.values():
        yield from _default(context)
        for place, row in enumerate(context.routes):
            yield from _route(context, row, _at(context, "routes", str(place)), events)


def _default(context: ContextSettings) -> Problems:
    """Check that a stream takes what no route takes.

    A context whose events all have a topic, or name their stream, needs no subject for others.
    """
    path = _at(context)
    given = "subject" in context.model_fields_set
    if given or context.stream or any(row.types for row in context.routes):
        problems = list(_template((*path, "subject"), context.subject))
        if problems:
            yield from problems
        elif context.routing.stream(context.subject) is None and context.stream:
            yield SettingProblem(
                (*path, "stream", "subjects"),
                f"no event reaches this stream: the subjects of events are {context.subject}",
                f'for example subjects = ["{event_subjects(context.name)}"]',
            )
        else:
            yield from _stored_by(context, (*path, "subject"), context.subject, context.event_streams)


def _route(
    context: ContextSettings, row: RouteSettings, path: KeyPath, events: Sequence[StreamSettings]
) -> Problems:
    """Check that a row fits some events, says where they go, and that a stream takes them there."""
    if not (row.types or row.topics):
        yield SettingProblem(
            path, "fits no event", 'add types = ["Loop*"] or topics = ["agent.>"]; see also subject'
        )
    if row.subject is None and row.stream is None:
        yield SettingProblem(path, "says neither subject nor stream")
    named = [stream for stream in events if row.stream in (None, stream.name)]
    if not named:
        known = ", ".join(dict.fromkeys(stream.name for stream in events))
        yield SettingProblem((*path, "stream"), f"no stream is called {row.stream}", f"known: {known}")
        return
    key = "stream" if row.subject is None else "subject"
    if row.subject is not None and (problems := list(_template((*path, key), row.subject))):
        yield from problems
    elif row.subject is not None or row.types:
        yield from _stored_by(context, (*path, key), row.subject or context.subject, named)
    for topic in row.topics if row.subject is None else ():
        yield from _no_letters((*path, "topics"), topic)
        taking = [stream for stream in named if any(subjects_overlap(topic, it) for it in stream.subjects)]
        if not taking:
            yield SettingProblem((*path, "stream"), f"{row.stream} does not take the topics {topic}")
        elif taking[0].no_ack:
            yield SettingProblem(
                (*path, "stream"), f"{row.stream} confirms nothing (no_ack), so it takes no events"
            )


def _stored_by(
    context: ContextSettings, path: KeyPath, subject: str, streams: Sequence[StreamSettings]
) -> Problems:
    """Check that one of the streams stores a subject, and confirms it."""
    taking = [stream for stream in streams if context.routing.takes(stream.subjects, subject)]
    if not taking:
        names = ", ".join(dict.fromkeys(stream.name for stream in streams))
        yield SettingProblem(path, f"no stream takes {subject}", f"add it to the subjects of {names}")
    elif any(stream.no_ack for stream in taking):
        yield SettingProblem(path, f"{subject} goes to {taking[0].name}, which confirms nothing (no_ack)")


def _no_letters(path: KeyPath, subject: str) -> Problems:
    """Refuse events under subjects of dead letters: nobody could tell them from letters."""
    if covers(ALL_LETTERS, subject):
        yield SettingProblem(path, f"{subject} is for dead letters", "events need another subject")


def _template(path: KeyPath, template: str) -> Problems:
    try:
        keys = {key for _, key, _, _ in Formatter().parse(template) if key is not None}
    except ValueError as error:
        yield SettingProblem(path, f"is not a template: {error}")
        return
    if unknown := keys - {"context", "name", "version"}:
        yield SettingProblem(
            path, f"has the unknown placeholder {{{min(unknown)}}}", "known: {context} {name} {version}"
        )
    elif not is_template(template):
        yield SettingProblem(
            path, "does not make a subject", "dots between tokens of A-Z a-z 0-9 _ - and placeholders"
        )
    else:
        yield from _no_letters(path, template)


# --- commands and queries ---


def _commands(settings: Settings) -> Problems:
    """Check that a command comes to one subscription: two would both execute it.

    A filter may let more through than commands. So the streams' subjects count too, where they are known.
    """
    declared = {stream.name: stream.subjects for _, stream in _all_streams(settings)}
    for one, other in combinations(_all_subscriptions(settings), 2):
        filters = one.filter_subject, other.filter_subject
        if one.stream != other.stream or not subjects_overlap(*filters):
            continue
        spaces = (it for it in (*filters, *declared.get(one.stream, ())) if covers(ALL_COMMANDS, it))
        if any(subjects_overlap(space, filters[0]) and subjects_overlap(space, filters[1]) for space in spaces):
            taker = ".".join(_sub(one))
            yield SettingProblem(
                _sub(other, "filter_subject"),
                f"takes commands that {taker} takes too ({filters[0]})",
                "one consumer handles a command: use filters that do not overlap",
            )


def _queries(settings: Settings) -> Problems:
    """Check that nobody else answers a query: no stream by its PubAck, and no second context."""
    answering = [(context, context.queries) for context in settings.contexts.values() if context.queries]
    for context, queries in answering:
        for path, stream in _all_streams(settings):
            if not stream.no_ack and (pair := _meeting(queries.subjects, stream.subjects)):
                message = f"{pair[0]} overlaps with {pair[1]} of {stream.name}, which would answer first"
                yield SettingProblem(
                    _at(context, "queries", "subjects"), message, f"set {'.'.join(path)}.no_ack = true"
                )
    for (_, one), (context, other) in combinations(answering, 2):
        if pair := _meeting(one.subjects, other.subjects):
            message = f"{pair[1]} overlaps with {pair[0]} of another context"
            yield SettingProblem(_at(context, "queries", "subjects"), message, "one context answers a query")


def _meeting(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    pairs = ((a, b) for a in one for b in other if subjects_overlap(a, b))
    return next(pairs, None)


_OF_CONTEXT: Final = (_cloudevents, _back_off, _dead_letters, _archive, _backpressure, _alerts)
_OF_SUBSCRIPTION: Final = (_handler_time, _limit, _handler_kind, _on_failure, _order)
_OF_ALL: Final = (
    *(_databases, _streams, _ways, _commands, _queries),
    *(_durables, _filters_reach, _renamed, _archived_streams, _metrics, _credentials, _plain_values),
)
