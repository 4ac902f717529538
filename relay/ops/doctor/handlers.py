"""Checks of what the configuration names: handlers, webhooks, archives, and the number of connections."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from relay.domain.findings import Finding, error, warning
from relay.settings import ContextSettings, Settings
from relay.settings.archive import USUAL, ArchiveSettings
from relay.settings.urls import database_of, hide_url
from relay.settings.values import format_duration

#: How many connections a process may have for its own statements in a context.
POOL: Final = 16


def addresses(settings: Settings) -> Iterator[tuple[str, str]]:
    """The receivers of messages and alerts: what each is, and its URL."""
    for context in settings.contexts.values():
        for sub in context.subscriptions.values():
            if sub.python_module is None:
                yield f"subscription {context.name}.{sub.name}", sub.handler
        if context.alerts.webhook is not None:
            yield f"alerts of {context.name}", context.alerts.webhook.get_secret_value()


def place_of(url: str) -> tuple[str, int]:
    """The host and port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def unreachable(subject: str, url: str, why: str) -> Iterator[Finding]:
    """A program listens where messages are sent. ``why``: "" if so."""
    if why:
        host, port = place_of(url)
        secret = subject.startswith("alerts")
        where = f"{host}:{port}" if secret else hide_url(url)
        text = f"nobody answers at {where}: {why}"
        yield (warning if secret else error)(
            "HANDLER_UNREACHABLE", subject, text, "start it, or correct its address"
        )


def modules(settings: Settings) -> Iterator[Finding]:
    """Modules with Python handlers, queries and actors exist. They are searched, not imported."""
    for context in settings.contexts.values():
        for sub in context.subscriptions.values():
            if (module := sub.python_module) is not None and not installed(module):
                yield _no_module(f"subscription {context.name}.{sub.name}", module)
        if context.queries is not None and not installed(context.queries.module):
            yield _no_module(f"queries of {context.name}", context.queries.module)
    for module in settings.user_modules:
        if not installed(module):
            yield _no_module("actor_modules", module)


def _no_module(subject: str, module: str) -> Finding:
    remedy = "install it, or run from its directory (PYTHONPATH); see `relay config`"
    return error("MODULE_MISSING", subject, f"there is no module {module}", remedy)


def installed(module: str) -> bool:
    """Whether a module is on the path. Looks at files only: importing it might do anything."""
    path: list[str] | None = [*sys.path, str(Path.cwd())]  # workers add their working directory
    for name in _prefixes(module):
        found = None if path is None else PathFinder.find_spec(name, path)
        if found is None:
            return False
        path = None if found.submodule_search_locations is None else [*found.submodule_search_locations]
    return True


def _prefixes(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def connections(settings: Settings, room: Mapping[str, int], workers: int) -> Iterator[Finding]:
    """The server of the databases has room for the pools of all processes. ``room``: by context.

    ``workers``: how many processes take jobs, at least one. A scheduler is one process more.
    """
    if settings.max_connections is None:  # each process takes what fits
        return
    servers = Counter(_server(context) for name, context in settings.contexts.items() if name in room)
    pooled = Counter(_server(context) for context in settings.contexts.values() if context.pooler is not None)
    allowed = {_server(context): room[name] for name, context in settings.contexts.items() if name in room}
    processes = max(1, workers) + 1
    for server, contexts in servers.items():
        # Besides, the scheduler that leads listens to each context. A pooler decides itself how many it opens.
        most = processes * min(settings.max_connections, (contexts - pooled[server]) * POOL) + contexts
        if most > allowed[server]:
            yield warning(
                "CONNECTION_BUDGET",
                f"postgresql at {server}",
                f"{processes} processes with {contexts} contexts may open up to {most} connections, and it allows"
                f" {allowed[server]}",
                "raise the server's max_connections, lower the relay's, or run fewer processes",
            )


def _server(context: ContextSettings) -> str:
    return database_of(context.database_url.get_secret_value())[0]


def unusual_time(place: str, archive: ArchiveSettings) -> Iterator[Finding]:
    """Rows are archived after a usual time."""
    assert archive.after is not None
    if not USUAL[0] <= archive.after <= USUAL[1]:
        least, most = map(format_duration, USUAL)
        text = f"after is {format_duration(archive.after)}; usual are {least} to {most}"
        yield warning("ARCHIVE_TIME", place, text, "set archive.after")


def forgotten_ids(place: str, outlived: Sequence[str]) -> Iterator[Finding]:
    """Ids of handled messages are kept as long as their events. ``outlived``: contexts that keep them longer."""
    if outlived:
        longer = ", ".join(outlived)
        text = f"keep is shorter than {longer} keeps events: an event that is replayed later is handled again"
        yield warning("ARCHIVE_KEEP", place, text, "set archive.keep to the same time as theirs")
