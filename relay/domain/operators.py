"""Who acts on the rows by hand: the person behind a command of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from relay.domain.errors import InvalidRequest

_ACTOR_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts, and why. Raises InvalidRequest if ``actor`` is empty or too long."""

    actor: str
    note: str | None = None

    def __post_init__(self) -> None:
        if not self.actor.strip() or len(self.actor) > _ACTOR_LIMIT:
            raise InvalidRequest(f"must be 1 to {_ACTOR_LIMIT} characters long", field="actor")
