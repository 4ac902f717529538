"""What the runners need from a kind of rows: messages, or tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from relay.adapters.postgres.pipeline import Command
from relay.domain.model import HandlerResult
from relay.domain.policies import DeadLetter, Disposition, Retry
from relay.execution.calls import PreparedCall


class HeldClaim(Protocol):
    """A row held under a claim. ``since``: `time.monotonic` before the claim was asked for."""

    @property
    def since(self) -> float: ...


KeyT = TypeVar("KeyT")
KeyT_contra = TypeVar("KeyT_contra", contravariant=True)
ClaimT = TypeVar("ClaimT", bound=HeldClaim)
RequestT = TypeVar("RequestT")


class Rows(Protocol[KeyT_contra, ClaimT, RequestT]):
    """Rows of one kind. A key names a row; a request is what a handler gets. Methods raise DatabaseUnreachable.

    ``lease``: how long a claim holds if nobody renews it. ``after_claim``: the failpoint behind a claim.
    """

    @property
    def lease(self) -> timedelta: ...
    @property
    def after_claim(self) -> str: ...

    async def claim(self, key: KeyT_contra, /) -> ClaimT | timedelta | None:
        """Claim a row. None when there is nothing to do; a time when the row is to be tried again after it."""

    async def renew(self, claim: ClaimT, /) -> bool:
        """Extend a claim by the lease. False when it was lost."""

    def request(self, claim: ClaimT, /) -> RequestT | Disposition:
        """What to ask the handler, or the verdict on a row that needs no call."""

    async def ask(self, request: RequestT, /) -> HandlerResult:
        """Call the handler, on the event loop and within its time limit."""

    def decide(self, result: HandlerResult, claim: ClaimT, seconds: float, /) -> Disposition:
        """Report an answer that took ``seconds``, and decide what follows from it."""

    async def mark(self, claims: Sequence[ClaimT], /) -> Sequence[ClaimT]:
        """Mark rows as done; returns those whose claim was still ours."""

    async def finish(self, claims: Sequence[ClaimT], /) -> None:
        """Do what follows for rows that are done and committed."""

    async def conclude(self, claim: ClaimT, verdict: Retry | DeadLetter, /) -> timedelta | None:
        """Record a failure and do what follows; returns after how long to try again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a row's function runs in a thread.

    ``seconds``: its time limit. ``writes``: whether it may write in the transaction that settles the row.
    ``limit``: how long that transaction may idle, if this differs from the usual limit. ``prefetch``: whether the
    same statement may claim other rows, too.
    """

    seconds: float
    writes: bool
    prefetch: bool
    limit: timedelta | None = None


class ThreadRows(Rows[KeyT, ClaimT, RequestT], Protocol[KeyT, ClaimT, RequestT]):
    """Rows whose plain functions run in worker threads, which send the statements themselves."""

    def terms(self, key: KeyT, /) -> Terms | None:
        """How the row's function runs in a thread. None when it does not."""

    def call(self, request: RequestT, /) -> PreparedCall | HandlerResult:
        """The call of a function, or an answer when no call is needed."""

    def claim_command(self, key: KeyT, /) -> Command:
        """The statement that claims one row."""

    def prefetch_command(self, key: KeyT, others: Sequence[KeyT], /) -> Command:
        """The statement that claims a row, and also the other given rows that were never tried."""

    def unclaim_command(self, claims: Sequence[ClaimT], /) -> Command:
        """The statement that undoes claims, and the attempts that they counted."""

    def claimed(self, command: Command, row: dict[str, Any], since: float, /) -> ClaimT:
        """The claim of a row that one of these statements returned."""

    def key(self, claim: ClaimT, /) -> KeyT:
        """The key of a claimed row."""
