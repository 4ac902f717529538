"""The domain: a case, what may happen to it, and what must not. It knows neither a database nor HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from relay.bus import AggregateRoot, DomainEvent
from relay.domain.errors import DomainError


class CaseOpened(DomainEvent):
    case_id: UUID
    account: str
    title: str


class CaseClosed(DomainEvent):
    case_id: UUID
    reason: str


class UnknownCase(DomainError):
    """There is no such case."""

    code = "UNKNOWN_CASE"


class CaseIsClosed(DomainError):
    """A closed case stays as it is."""

    code = "CASE_IS_CLOSED"


class Case(AggregateRoot):
    """The aggregate: every rule about a case is here."""

    def __init__(self, id: UUID, account: str, title: str) -> None:
        self.id = id
        self.account = account
        self.title = title
        self.opened_at = datetime.now(UTC)
        self.closed_because: str | None = None
        self.record(CaseOpened(case_id=id, account=account, title=title))

    def close(self, reason: str) -> None:
        """Close it for a reason. Raises CaseIsClosed."""
        if self.closed_because is not None:
            raise CaseIsClosed(f"the case was closed before: {self.closed_because}")
        self.closed_because = reason
        self.record(CaseClosed(case_id=self.id, reason=reason))
