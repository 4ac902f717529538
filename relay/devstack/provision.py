"""Make the servers of a development stack ready for a configuration: databases, tables, streams."""

from __future__ import annotations

import asyncio
import contextlib

import psycopg
from nats.js.errors import NotFoundError

from relay.adapters.jetstream import topology
from relay.adapters.postgres.revisions import newest
from relay.adapters.postgres.sql import statement
from relay.credentials import jetstream
from relay.devstack.stack import DevStack
from relay.domain.errors import ConfigurationError
from relay.settings import Settings


def prepare(stack: DevStack, settings: Settings) -> None:
    """Create what is missing. Safe to repeat. Tables are upgraded, unless they are newer.

    Raises ConfigurationError when a stream on the server differs in a way that cannot be mended.
    """
    for name, context in settings.contexts.items():
        if not _is_at(context.database, newest()):
            with contextlib.suppress(psycopg.errors.DuplicateDatabase):
                stack.postgres.create_database(name)
            _upgrade(context.database)
        if context.microdao_schema is not None:
            _lay_microdao(context.database, context.microdao_schema)
    asyncio.run(_ensure_streams(settings))


def _upgrade(url: str) -> None:
    from relay.adapters.postgres.migrations import upgrade  # noqa: PLC0415 - alembic: a third of a second

    upgrade(url)


def _lay_microdao(url: str, schema: str) -> None:
    from relay.adapters.postgres import microdao  # noqa: PLC0415 - alembic: a third of a second

    microdao.lay(url, schema)


def _is_at(url: str, revision: str) -> bool:
    """Whether a database exists and has a revision. An upgrade would find out too, for five times as long."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return connection.execute(statement("server/revision")).fetchone() == (revision,)
    except psycopg.Error:
        return False


def wipe(stack: DevStack, settings: Settings) -> None:
    """Remove the databases and streams that `prepare` makes, with all their data."""
    for name in settings.contexts:
        stack.postgres.drop_database(name)
    asyncio.run(_delete_streams(settings))


async def _ensure_streams(settings: Settings) -> None:
    async with jetstream(settings) as js:
        changes = await topology.ensure(js, settings.streams(), settings.consumers())
    refused = [change.name for change in changes if change.action == "refused"]
    if refused:
        raise ConfigurationError(
            f"what exists cannot be changed to the configuration: {', '.join(refused)}",
            hint="relay streams diff tells the difference; remove the directory of the servers to start anew",
        )


async def _delete_streams(settings: Settings) -> None:
    async with jetstream(settings) as js:
        for stream in settings.streams():
            with contextlib.suppress(NotFoundError):
                await js.delete_stream(stream.name)
