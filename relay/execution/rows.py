"""The steps of an attempt at a row, as its kind provides them: messages, tasks, chunks of messages, cron runs.

`relay.execution.runners` takes the steps in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from relay.adapters.postgres.pipeline import Command
from relay.domain.model import HandlerResult
from relay.domain.policies import DeadLetter, Disposition, Retry
from relay.execution.calls import PreparedCall


class HeldClaim(Protocol):
    """A row, or several rows, held under a claim. ``since``: `time.monotonic` before the claim was requested."""

    @property
    def since(self) -> float: ...


KeyT = TypeVar("KeyT")
KeyT_contra = TypeVar("KeyT_contra", contravariant=True)
ClaimT = TypeVar("ClaimT", bound=HeldClaim)
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
VerdictT = TypeVar("VerdictT")
VerdictT_co = TypeVar("VerdictT_co", covariant=True)
LaterT = TypeVar("LaterT")
LaterT_co = TypeVar("LaterT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Unclaimed(Generic[LaterT_co]):
    """A row that may not start now. ``later``: when to try it again."""

    later: LaterT_co


@dataclass(frozen=True, slots=True)
class Decided(Generic[VerdictT_co]):
    """A row that needs no call, because its verdict is known."""

    verdict: VerdictT_co


class Steps(Protocol[KeyT_contra, ClaimT, RequestT, AnswerT, VerdictT_co, LaterT_co]):
    """The steps of an attempt before its settlement. A key names a row; a request is what a handler gets.

    ``lease``: how long a claim holds if nobody renews it. ``after_claim``: the failpoint behind a claim. The
    coroutines raise DatabaseUnreachable.
    """

    @property
    def lease(self) -> timedelta: ...
    @property
    def after_claim(self) -> str: ...

    async def claim(self, key: KeyT_contra, /) -> ClaimT | Unclaimed[LaterT_co] | None:
        """Claim a row. None if there is nothing to do."""

    async def renew(self, claim: ClaimT, /) -> bool:
        """Extend a claim by the lease. False if it was lost."""

    def request(self, claim: ClaimT, /) -> RequestT | Decided[VerdictT_co]:
        """What to ask the handler."""

    async def ask(self, request: RequestT, /) -> AnswerT:
        """Call the handler, on the event loop and within its time limit."""

    def decide(self, answer: AnswerT, claim: ClaimT, seconds: float, /) -> VerdictT_co:
        """Report an answer that took ``seconds``, and decide what follows from it."""


class SingleRows(
    Steps[KeyT_contra, ClaimT, RequestT, HandlerResult, Disposition, timedelta],
    Protocol[KeyT_contra, ClaimT, RequestT],
):
    """Rows that are claimed and decided one by one, and of which many may be marked as done together."""

    async def mark(self, claims: Sequence[ClaimT], /) -> Sequence[ClaimT]:
        """Mark rows as done; returns those whose claim was not lost."""

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


class ThreadRows(SingleRows[KeyT, ClaimT, RequestT], Protocol[KeyT, ClaimT, RequestT]):
    """Rows whose plain functions run in worker threads, which send the statements themselves."""

    def terms(self, key: KeyT, /) -> Terms | None:
        """How the row's function runs in a thread. None if it does not."""

    def call(self, request: RequestT, /) -> PreparedCall | HandlerResult | None:
        """The call of a function, or an answer if no call is needed; None if the loop calls it."""

    def claim_command(self, key: KeyT, /) -> Command:
        """The statement that claims one row."""

    def prefetch_command(self, key: KeyT, others: Sequence[KeyT], /) -> Command:
        """The statement that claims a row, and also the other given rows that were never tried."""

    def unclaim_command(self, claims: Sequence[ClaimT], /) -> Command:
        """The statement that undoes claims, and the attempts that they counted."""

    def read_claim(self, command: Command, row: dict[str, Any], since: float, /) -> ClaimT:
        """The claim that one of these statements has returned as a row."""

    def key(self, claim: ClaimT, /) -> KeyT:
        """The key of a claimed row."""
