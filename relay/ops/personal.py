"""Encrypts payloads for producers in other languages, which write their events by SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from psycopg.rows import tuple_row
from pydantic import Field
from uuid_utils.compat import uuid7

from relay.bus import Command, CommandBus
from relay.domain.errors import ConfigurationError, of_context
from relay.domain.limits import encode_payload
from relay.domain.model import OutboxEvent
from relay.domain.personal import Personal, places
from relay.ops.handlers import Sources
from relay.settings import Settings


class EncryptPayload(Command[Any]):
    """Encrypt the personal fields of a payload, as relay.toml declares them for its type; returns the payload.

    A new key of a person is committed. Nothing else is kept. Raises InvalidPayload, ConfigurationError.
    """

    context: str
    event_type: str
    payload: Any = Field(repr=False)


def carry_out_for_personal(bus: CommandBus, settings: Settings, sources: Sources) -> CommandBus:
    """Have a bus carry out this command; returns the bus."""

    @bus.handles(EncryptPayload)
    async def encrypt(command: EncryptPayload) -> Any:
        context = of_context(settings.contexts, command.context)
        text = encode_payload(command.payload)
        declared, masters = context.personal.get(command.event_type), settings.personal.value()
        if declared is None or not places(content := json.loads(text), fields := declared.value()):
            return command.payload
        if masters is None:
            raise ConfigurationError("no master key wraps the keys of personal fields", field="personal.master")
        from relay.adapters.postgres.encrypting import encrypted_async  # noqa: PLC0415 - loads SQLAlchemy

        row = OutboxEvent(
            id=uuid7(),
            aggregate_type="none",
            aggregate_id="none",
            event_type=command.event_type,
            payload=text,
            personal=Personal(context.name, fields.subject_of(content), fields, masters),
        )
        async with sources(context) as source, source() as conn, conn.cursor(row_factory=tuple_row) as cursor:

            async def ask(sql: str, parameters: Any) -> Sequence[Sequence[Any]]:
                await cursor.execute(sql.encode(), {name: str(it) for name, it in parameters.items()})
                return await cursor.fetchall()

            [done] = await encrypted_async([row], ask)
        return json.loads(done.payload)

    return bus
