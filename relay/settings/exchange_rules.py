"""Rules of what one alone may take: one consumer handles a command, one context answers a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from relay.domain.subject import ALL_COMMANDS
from relay.domain.topology import covers, subjects_overlap
from relay.settings.model import ContextSettings, Settings
from relay.settings.problems import KeyPath, Problem
from relay.settings.stream_rules import all_streams

Problems = Iterator[Problem]


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
            yield Problem(
                ("contexts", other.context, "subscriptions", other.name, "filter_subject"),
                f"takes commands that {taker} takes too ({filters[0]})",
                "one consumer handles a command: filter apart",
            )


def _queries(settings: Settings) -> Problems:
    """Check that nobody else answers a query: no stream by its PubAck, and no second context."""
    answering = [(context, context.queries) for context in settings.contexts.values() if context.queries]
    for context, queries in answering:
        for path, stream in all_streams(settings):
            if not stream.no_ack and (pair := _meeting(queries.subjects, stream.subjects)):
                message = f"{pair[0]} overlaps with {pair[1]} of {stream.name}, which would answer first"
                yield Problem(_subjects(context), message, f"set {'.'.join(path)}.no_ack = true")
    for (_, one), (context, other) in combinations(answering, 2):
        if pair := _meeting(one.subjects, other.subjects):
            message = f"{pair[1]} overlaps with {pair[0]} of another context"
            yield Problem(_subjects(context), message, "one context answers a query")


def _subjects(context: ContextSettings) -> KeyPath:
    return ("contexts", context.name, "queries", "subjects")


def _meeting(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    pairs = ((a, b) for a in one for b in other if subjects_overlap(a, b))
    return next(pairs, None)
