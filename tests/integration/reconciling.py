"""What tests of reconciliation share: losing what a stream holds, and looking at what it still does."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import nats.errors
from nats.js.errors import NotFoundError

from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.ledger import PostgresLedger
from relay.commands.reconcile import AuditLimits, ReconcileStream, StreamReport
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.identity import NatsMsgId
from tests.integration.publishing import Relay, event
from tests.waiting import eventually


def command(relay: Relay, auditor: Any = None, page: int = 1_000) -> ReconcileStream:
    auditor = auditor or NatsStreamAuditor(relay.nats)
    limits = AuditLimits(page=page, confirm=timedelta())
    return ReconcileStream(relay.context, PostgresLedger(relay.pool), auditor, relay.facts.append, limits)


async def publish(relay: Relay, count: int, key: str = "v1") -> list[UUID]:
    ids = [relay.add(event(key))[0] for _ in range(count)]
    await relay.drained()
    return ids


async def held(relay: Relay) -> list[UUID]:
    """The events in the stream, in its order."""

    async def read(js: Any) -> list[UUID]:
        state = (await js.stream_info(relay.stream)).state
        found = []
        for seq in range(state.first_seq, state.last_seq + 1):
            with suppress(NotFoundError):
                message = await js.get_msg(relay.stream, seq)
                sent = NatsMsgId.read(message.headers or {})
                if sent and sent.event_id:  # not a foreign one
                    found.append(sent.event_id)
        return found

    return list(await relay.admin(read))


def only(reports: Sequence[StreamReport]) -> StreamReport:
    [report] = reports
    return report


class OlderStore:
    """A store directory put back to what it was: a backup restored, a disk that lost its last writes."""

    def __init__(self, server: NatsServer, directory: Path) -> None:
        self._server, self._copy = server, directory
        self._store = server.directory / "jetstream"

    def keep(self) -> None:
        self._server.stop()
        shutil.copytree(self._store, self._copy)
        self._server.start()

    def restore(self) -> None:
        self._server.stop()
        shutil.rmtree(self._store)
        shutil.copytree(self._copy, self._store)
        self._server.start()


@asynccontextmanager
async def losing(url: str, server: NatsServer, tmp_path: Path) -> AsyncIterator[tuple[Relay, OlderStore]]:
    async with Relay(url, server.url) as relay:
        await relay.create_stream()
        yield relay, OlderStore(server, tmp_path / "older")


async def connected(relay: Relay) -> None:
    async def usable() -> bool:
        # A client may not have noticed yet that its server was stopped: only an answer shows that it is connected.
        with suppress(BrokerUnreachable, nats.errors.Error):
            client = await relay.nats.client()
            await client.flush(2)
            return client.is_connected
        return False

    await eventually("the publisher is connected again", usable)


async def recreate(relay: Relay) -> None:
    await relay.admin(lambda js: js.delete_stream(relay.stream))
    await relay.create_stream()


async def foreign(relay: Relay, count: int) -> None:
    async def send(js: Any) -> None:
        for _ in range(count):
            await js.publish(f"{relay.context}.event.other.v1", b"{}")

    await relay.admin(send)


async def delete(relay: Relay, seq: int) -> None:
    await relay.admin(lambda js: js.delete_msg(relay.stream, seq))
