"""A dead letter fits the broker, whatever its message carries: what is left out the inbox has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from relay.commands.deadletter import RouteToDeadLetter
from relay.domain.limits import WIRE_RESERVE_BYTES
from relay.domain.policies import DeadLetter, DeadLetterClass, Published
from relay.ports import ClaimedMessage, InboxRow

LIMIT = 65_536
HEADERS = {f"H{n}": "\ufffd" * 60 for n in range(250)}


class Broker:
    """Takes what it is given."""

    max_payload = LIMIT

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Published:
        self.bodies.append(payload)
        return Published("SEA_DLQ", 1)


@pytest.mark.parametrize(
    ("body", "headers", "kept"),
    [
        (b"{}", {"A": "1"}, {"original", "headers"}),
        (b"x" * LIMIT, {"A": "1"}, {"headers"}),
        (b"{}", HEADERS, set()),
        (b"x" * LIMIT, HEADERS, set()),
    ],
)
def test_what_is_too_large_for_the_letter_is_left_out(
    body: bytes, headers: dict[str, str], kept: set[str]
) -> None:
    broker = Broker()
    row = InboxRow(UUID(int=1), "up.event.x.v1", "s", "UP", 1, "", body, headers)
    unused: Any = None
    parts: Any = {"stream": "SEA_DLQ", "stored": unused, "incidents": unused}
    route = RouteToDeadLetter("sea", broker, lambda _: None, **parts)  # type: ignore[arg-type]
    asyncio.run(route.route(ClaimedMessage(UUID(int=2), row, 0), DeadLetter("why", DeadLetterClass.POISON)))
    [letter] = broker.bodies
    assert len(letter) <= LIMIT - WIRE_RESERVE_BYTES
    fields = json.loads(letter)
    assert {name for name in ("original", "headers") if fields[name]} == kept
    assert fields["reason"] == "why"
