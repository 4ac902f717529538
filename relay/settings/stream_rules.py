"""Rules between streams, subjects, routes and subscriptions.

Every event has a stream, every subject one stream only, a command one consumer, and a query one context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from string import Formatter

from relay.domain.routing import event_subjects, is_template
from relay.domain.subject import ALL_COMMANDS
from relay.domain.topology import RELAY_ADVISORIES, covers, subjects_overlap
from relay.settings.model import ContextSettings, RouteSettings, Settings, StreamSettings
from relay.settings.problems import KeyPath, SettingProblem
from relay.settings.values import format_duration

Problems = Iterator[SettingProblem]


def check_streams(settings: Settings) -> Problems:
    """Return what is wrong with the streams, and with the ways to them."""
    yield from _streams(settings)
    events = [stream for context in settings.contexts.values() for stream in context.event_streams]
    for context in settings.contexts.values():
        yield from _default(context)
        for place, row in enumerate(context.routes):
            yield from _route(context, row, ("contexts", context.name, "routes", str(place)), events)


def all_streams(settings: Settings) -> list[tuple[KeyPath, StreamSettings]]:
    """Return every declared stream, and where."""
    found: list[tuple[KeyPath, StreamSettings]] = []
    for context in settings.contexts.values():
        here = ("contexts", context.name)
        found += [((*here, "stream"), context.stream)] if context.stream else []
        found += [((*here, "streams", key), stream) for key, stream in context.streams.items()]
        found += [((*here, "dlq"), context.dlq)]
    return found


# --- streams ---


def _streams(settings: Settings) -> Problems:
    """Check that a name means one stream and a subject goes to one stream (else JetStream answers 10065)."""
    for path, stream in all_streams(settings):
        yield from _stream(path, stream)
    for (first, one), (second, other) in combinations(all_streams(settings), 2):
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


def _default(context: ContextSettings) -> Problems:
    """Check that a stream takes what no route takes.

    A context whose events all have a topic, or name their stream, needs no subject for others.
    """
    path = ("contexts", context.name)
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
            yield from _taken(context, (*path, "subject"), context.subject, context.event_streams)


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
        yield from _taken(context, (*path, key), row.subject or context.subject, named)
    for topic in row.topics if row.subject is None else ():
        taking = [stream for stream in named if any(subjects_overlap(topic, it) for it in stream.subjects)]
        if not taking:
            yield SettingProblem((*path, "stream"), f"{row.stream} does not take the topics {topic}")
        elif taking[0].no_ack:
            yield SettingProblem(
                (*path, "stream"), f"{row.stream} confirms nothing (no_ack), so it takes no events"
            )


def _taken(context: ContextSettings, path: KeyPath, subject: str, streams: Sequence[StreamSettings]) -> Problems:
    """Check that one of the streams stores a subject, and confirms it."""
    taking = [stream for stream in streams if context.routing.takes(stream.subjects, subject)]
    if not taking:
        names = ", ".join(dict.fromkeys(stream.name for stream in streams))
        yield SettingProblem(path, f"no stream takes {subject}", f"add it to the subjects of {names}")
    elif any(stream.no_ack for stream in taking):
        yield SettingProblem(path, f"{subject} goes to {taking[0].name}, which confirms nothing (no_ack)")


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


# --- commands and queries ---


def check_exchange(settings: Settings) -> Problems:
    """Return the problems of commands and queries."""
    yield from _commands(settings)
    yield from _queries(settings)


def _commands(settings: Settings) -> Problems:
    """Check that a command comes to one subscription: two would both execute it.

    A filter may let more through than commands. So the streams' subjects count too, where they are known.
    """
    declared = {stream.name: stream.subjects for _, stream in all_streams(settings)}
    subscriptions = [sub for context in settings.contexts.values() for sub in context.subscriptions.values()]
    for one, other in combinations(subscriptions, 2):
        filters = one.filter_subject, other.filter_subject
        if one.stream != other.stream or one.context == other.context or not subjects_overlap(*filters):
            continue
        spaces = (it for it in (*filters, *declared.get(one.stream, ())) if covers(ALL_COMMANDS, it))
        if any(subjects_overlap(space, filters[0]) and subjects_overlap(space, filters[1]) for space in spaces):
            taker = f"contexts.{one.context}.subscriptions.{one.name}"
            yield SettingProblem(
                ("contexts", other.context, "subscriptions", other.name, "filter_subject"),
                f"takes commands that {taker} takes too ({filters[0]})",
                "one consumer handles a command: use filters that do not overlap",
            )


def _queries(settings: Settings) -> Problems:
    """Check that nobody else answers a query: no stream by its PubAck, and no second context."""
    answering = [(context, context.queries) for context in settings.contexts.values() if context.queries]
    for context, queries in answering:
        for path, stream in all_streams(settings):
            if not stream.no_ack and (pair := _meeting(queries.subjects, stream.subjects)):
                message = f"{pair[0]} overlaps with {pair[1]} of {stream.name}, which would answer first"
                yield SettingProblem(_subjects(context), message, f"set {'.'.join(path)}.no_ack = true")
    for (_, one), (context, other) in combinations(answering, 2):
        if pair := _meeting(one.subjects, other.subjects):
            message = f"{pair[1]} overlaps with {pair[0]} of another context"
            yield SettingProblem(_subjects(context), message, "one context answers a query")


def _subjects(context: ContextSettings) -> KeyPath:
    return ("contexts", context.name, "queries", "subjects")


def _meeting(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    pairs = ((a, b) for a in one for b in other if subjects_overlap(a, b))
    return next(pairs, None)
