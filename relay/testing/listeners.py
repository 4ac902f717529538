"""A handler that answers as a test says, and a listener that remembers facts."""

from __future__ import annotations

from typing import TypeVar

from relay.domain.facts import Fact
from relay.domain.model import HandlerResult
from relay.ports import HandlerRequest

Kind = TypeVar("Kind", bound=Fact)


class MemoryHandler:
    """Answers with these results one after the other, then always with the last one.

    By default it accepts everything.
    """

    def __init__(self, *answers: HandlerResult) -> None:
        self.requests: list[HandlerRequest] = []
        self._answers = list(answers) or [HandlerResult.from_status(200)]

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        self.requests.append(request)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class MemoryFacts(list[Fact]):
    """A `FactSink`: the list of all facts, in their order."""

    def __call__(self, fact: Fact, /) -> None:
        """Remember a fact."""
        self.append(fact)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the facts of one kind."""
        return [fact for fact in self if isinstance(fact, kind)]
