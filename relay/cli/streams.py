"""`relay streams`: the streams and consumers on the broker, compared with relay.toml."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import typer
from nats.js import JetStreamContext

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.topology import Difference, StreamView, TopologyChange
from relay.bus import Query, QueryBus
from relay.cli.options import ContextOption, JsonOption, print_json
from relay.credentials import jetstream
from relay.domain.permissions import Permissions, of_admin, of_fleet
from relay.domain.topology import ConsumerSpec, StreamSpec
from relay.ops.servers import DiffStreams, ShowStreams, answer_for_servers
from relay.settings import load_settings

T = TypeVar("T")
Action = Callable[[JetStreamContext, Sequence[StreamSpec], Sequence[ConsumerSpec]], Awaitable[list[T]]]

_HEAD: Final = """\
# Made from relay.toml by `relay streams permissions`; make it again when contexts or subscriptions change.
# Passwords come from the environment of nats-server. relay_admin sets RELAY_NATS__INBOX_PREFIX={inbox}_admin."""
app = typer.Typer(help="Create, compare and show the streams and consumers of relay.toml.", no_args_is_help=True)


@app.command()
def ensure(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Create what is missing, update what differs, delete nothing. Status 1 if something cannot be changed."""
    changes = _run(topology.ensure, context)
    _print(changes, _change_line, "Nothing to do.", as_json)
    if any(change.action == "refused" for change in changes):
        raise typer.Exit(1)


@app.command()
def diff(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Compare the broker with relay.toml and change nothing. Status 1 if they differ."""
    differences = _asked(DiffStreams(context=context))
    _print(differences, _difference_line, "No differences.", as_json)
    if differences:
        raise typer.Exit(1)


@app.command()
def show(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show what streams hold and how far consumers have come."""
    _print(_asked(ShowStreams(context=context)), _view_lines, "Nothing declared.", as_json)


@app.command()
def permissions(as_json: JsonOption = False) -> None:
    """Print the users for nats.conf, with only the rights that they need: the fleet, and `relay streams`."""
    settings = load_settings()
    streams, consumers = settings.streams(), settings.consumers()
    contexts = settings.contexts.values()
    published = [name for context in contexts for name in context.routing.streams]
    consumed = [found.stream for context in contexts for found in context.subscriptions.values()]
    audited = dict.fromkeys([*published, *consumed])
    letters = [found.dlq.name for found in contexts if found.subscriptions]
    inbox, queried = settings.nats.inbox_prefix, settings.queried()
    users = {
        "relay": (
            "RELAY_NATS_PASSWORD",
            of_fleet(streams, consumers, audited, inbox, queried, letters, settings.asks),
        ),
        "relay_admin": ("RELAY_NATS_ADMIN_PASSWORD", of_admin(streams, consumers, f"{inbox}_admin")),
    }
    if as_json:
        print_json(
            [
                {"user": user, "password_variable": name, **asdict(granted)}
                for user, (name, granted) in users.items()
            ]
        )
        return
    print(_HEAD.format(inbox=inbox))
    print("authorization {\n  users = [")
    for user, (variable, granted) in users.items():
        _print_user(user, variable, granted)
    print("  ]\n}")


def _print_user(user: str, variable: str, granted: Permissions) -> None:
    print(f"    {{\n      user: {user}, password: ${variable}\n      permissions {{")
    for verb, subjects in (("publish", granted.publish), ("subscribe", granted.subscribe)):
        print(f"        {verb} {{ allow: [")
        print(*(f"          {json.dumps(subject)}" for subject in subjects), sep="\n")
        print("        ] }")
    if granted.responses:
        print("        allow_responses: true")
    print("      }\n    }")


def _asked(query: Query[Sequence[T]]) -> Sequence[T]:
    return asyncio.run(answer_for_servers(QueryBus(), load_settings()).ask_async(query)).unwrap()


def _run(action: Action[T], context: str | None) -> list[T]:
    settings = load_settings()
    streams, consumers = settings.streams(context), settings.consumers(context)

    async def once() -> list[T]:
        async with jetstream(settings) as js:
            return await action(js, streams, consumers)

    return asyncio.run(once())


def _print(items: Sequence[Any], line: Callable[[Any], str], nothing: str, as_json: bool) -> None:
    if as_json:
        print_json([asdict(item) for item in items])
    else:
        print("\n".join(map(line, items)) or nothing)


def _change_line(change: TopologyChange) -> str:
    fields = f": {', '.join(change.fields)}" if change.fields else ""
    rest = " (to change this, delete it and make it again)" if change.action == "refused" else ""
    return f"{change.action} {change.kind} {change.name}{fields}{rest}"


def _difference_line(found: Difference) -> str:
    if found.missing:
        return f"{found.kind} {found.name}: missing"
    rest = "" if found.changeable else " (to change this, delete it and make it again)"
    return f"{found.kind} {found.name}: {found.field} is {found.actual}, should be {found.expected}{rest}"


def _view_lines(view: StreamView) -> str:
    if not view.exists:
        return f"{view.name}: missing"
    span = f"sequence {view.first_seq} to {view.last_seq}, subjects {', '.join(view.subjects)}"
    lines = [f"{view.name}: {view.messages} messages, {view.size_bytes} bytes, {span}"]
    for found in view.consumers:
        counts = f"{found.waiting} waiting, {found.unacknowledged} unacknowledged, {found.redelivered} redelivered"
        lines.append(f"  {found.durable}: {counts}")
    return "\n".join(lines)
