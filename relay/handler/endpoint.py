"""HandlerEndpoint: verify, validate, deduplicate, call, commit, and report the result by the status."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack, cast, overload
from urllib.parse import quote

import anyio
from sqlalchemy import Engine, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from relay.adapters.http import IDEMPOTENCY_KEY, REASON, key_of
from relay.adapters.postgres.processed_events import Claim, processed_events_table
from relay.bus import RequestContext
from relay.bus.context import next_span
from relay.domain.actor import Actor, actor_of
from relay.domain.disclosure import printable
from relay.domain.errors import (
    AlreadyProcessed,
    DomainError,
    DuplicateMessage,
    InvalidActor,
    InvalidKey,
    MissingExtraError,
)
from relay.domain.identity import Id, Identity, check_id
from relay.domain.limits import check_key
from relay.domain.model import DONE
from relay.domain.outages import says_held
from relay.domain.policies import KEEP
from relay.domain.quoting import quoted
from relay.domain.retry import RetryLater
from relay.domain.retry_after import RETRY_AFTER, header_of
from relay.domain.traceparent import TRACEPARENT
from relay.handler.contract import TOLERANCE, Call, Payloads, Refused, Signatures
from relay.handler.transaction import (
    AsyncTransaction,
    SyncTransaction,
    Transaction,
    is_outage,
    prune_engine,
    waiting_room,
)

AnySession = TypeVar("AnySession", bound=Session | AsyncSession)
Payload = TypeVar("Payload")

#: Twice nats-server's default limit for a message, in bytes.
MAX_BODY_BYTES: Final = 2 * 1024**2

#: The characters that need no quoting in a header.
_PLAIN: Final = "".join(char for char in map(chr, range(0x20, 0x7F)) if char != "%")
#: After a lock of another transaction was in the way. It spends no attempt of the message.
_HELD_WAIT: Final = timedelta(seconds=2)

_log = logging.getLogger("relay.handler")


@dataclass(frozen=True, slots=True)
class Received(Generic[Payload, AnySession]):
    """One message: the ``call`` of the contract, its ``payload`` as the declared type, and a session.

    ``actor``: who caused the event; None when unknown, or when there is a secret and nobody has signed it.
    ``idempotency_key``, the same for all copies of a message, is the key of effects outside the database. What is
    written through ``session``, by ``Outbox.add`` too, commits together with the row that says that the message
    is done.
    """

    call: Call
    payload: Payload
    session: AnySession
    actor: Actor | None = None
    idempotency_key: str = ""

    @property
    def message_id(self) -> Id:
        """The event's id."""
        return self.call.message_id


class Options(TypedDict, total=False):
    """The options of `HandlerEndpoint`; see there. ``tolerance``: how far the clocks may differ."""

    secret: str | None
    tolerance: timedelta
    table: Table | None
    max_body: int


@dataclass(slots=True)
class _Attempt(Generic[AnySession]):
    received: Received[Any, AnySession]
    keep: bool = True

    def settle(self, status: int | None) -> None:
        """Keep the writes only if the relay reads the status as done."""
        self.keep = (status or 200) in DONE


class HandlerEndpoint(Generic[AnySession]):
    """The handler contract for one handler of a service.

    ``name``: its own in the database, and never changed: it stands in its rows. ``payloads``: the type of each
    event's payload by ``name.vN``, ``*`` for every other event. ``secret``: the subscription's ``signing_secret``,
    or several separated by spaces; None accepts unsigned requests. ``table``: from `processed_events_table`, if
    the service keeps it in its own metadata. ``max_body``: in bytes, 2 MiB by default.

    Answers: 200 done · 409 done before · 401 signature missing or wrong · 422 with the reason: bad requests,
    unknown events, `Poison` · 503 database unavailable, deadlock, or another call handles the message now; with
    ``Retry-After``: `RetryLater` · 500 any other exception. Raises ConfigurationError and InvalidKey.
    """

    @overload
    def __init__(
        self: HandlerEndpoint[Session],
        name: str,
        engine: Engine,
        payloads: Mapping[str, Any],
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: HandlerEndpoint[AsyncSession],
        name: str,
        engine: AsyncEngine,
        payloads: Mapping[str, Any],
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(
        self, name: str, engine: Engine | AsyncEngine, payloads: Mapping[str, Any], **options: Unpack[Options]
    ) -> None:
        self._name = check_key(name, "name")
        self._engine = engine
        self._payloads = Payloads(payloads)
        secret, table = options.get("secret"), options.get("table")
        self._signatures = None if secret is None else Signatures(secret, options.get("tolerance", TOLERANCE))
        self._table = processed_events_table(MetaData()) if table is None else table
        self._max_body = options.get("max_body", MAX_BODY_BYTES)
        self._waiting: anyio.CapacityLimiter | None = None

    def dependency(self) -> Any:
        """The dependency for FastAPI: ``event: Annotated[Received[P, S], endpoint.dependency()]``.

        It commits after the endpoint returns and before the answer is sent. To refuse a message, raise an
        exception: this code cannot see a returned ``JSONResponse(status_code=503)`` and would commit.
        Raises MissingExtraError.
        """
        try:
            from fastapi import Depends  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingExtraError("fastapi is not installed", hint="pip install fastapi") from error
        return Depends(self._depend, scope="function")

    def route(
        self, function: Callable[[Received[Any, AnySession]], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint for Starlette: ``Route("/handle", endpoint.route(handle), methods=["POST"])``.

        ``function`` may be a coroutine function; another function runs in a thread. It returns None or a Response.
        A Response with an error status rolls back.
        """

        async def handle(request: Request) -> Response:
            async with self._attempt(request) as attempt:
                if inspect.iscoroutinefunction(function):
                    answer = await function(attempt.received)
                else:
                    answer = await run_in_threadpool(function, attempt.received)
                response = answer if isinstance(answer, Response) else Response()
                attempt.settle(response.status_code)
            return response

        return handle

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[Received[Any, AnySession]]:
        """The same as a block, for other frameworks on Starlette. It commits at its end. Raises HTTPException."""
        async with self._attempt(request) as attempt:
            yield attempt.received

    async def prune(self, keep: timedelta = KEEP) -> int:
        """Forget messages of all handlers that were handled longer than ``keep`` ago; return how many."""
        return await prune_engine(self._engine, self._table, keep)

    async def _depend(self, request: Request, response: Response) -> AsyncIterator[Received[Any, AnySession]]:
        async with self._attempt(request) as attempt:
            yield attempt.received
            attempt.settle(response.status_code)

    @asynccontextmanager
    async def _attempt(self, request: Request) -> AsyncIterator[_Attempt[AnySession]]:
        """Turn every exception of the block into the status that tells the relay what to do."""
        try:
            read = self._read(request.headers, await self._body(request))
            async with self._transaction(*read, _span(request)) as attempt:
                yield attempt
        except Refused as refused:
            raise _refusal(refused.status, refused.reason) from None
        except DomainError as error:
            raise _refusal(422, error.message) from error
        except AlreadyProcessed as error:
            raise _refusal(409, error.message) from error
        except RetryLater as later:
            raise _refusal(503, later.message, {RETRY_AFTER: header_of(later.delay)}) from later
        except Exception as error:
            if not is_outage(error):
                raise
            _log.warning("%s is not available: %s", self._name, type(error).__name__)
            headers = {RETRY_AFTER: header_of(_HELD_WAIT)} if says_held(error) else {}
            raise _refusal(503, f"not available: {type(error).__name__}", headers) from error

    @asynccontextmanager
    async def _transaction(
        self, call: Call, payload: Any, actor: Actor | None, key: Identity, traceparent: str | None
    ) -> AsyncIterator[_Attempt[AnySession]]:
        transaction = self._open()
        try:
            _check(await transaction.begin(self._table, self._name, key.uuid))
            attempt = _Attempt(Received(call, payload, transaction.session, actor, key.shown))
            request = RequestContext(
                correlation_id=call.correlation_id, causation_id=call.message_id, traceparent=traceparent
            )
            with request.use():
                yield attempt
            if attempt.keep:
                await transaction.commit()
        finally:
            await transaction.roll_back()

    def _open(self) -> Transaction[AnySession]:
        if isinstance(self._engine, AsyncEngine):
            return cast("Transaction[AnySession]", AsyncTransaction(self._engine))
        self._waiting = self._waiting or waiting_room()
        return cast("Transaction[AnySession]", SyncTransaction(self._engine, self._waiting))

    async def _body(self, request: Request) -> bytes:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body:
                raise Refused(422, f"the body is longer than {self._max_body} bytes")
        return body

    def _read(self, headers: Mapping[str, str], body: bytes) -> tuple[Call, Any, Actor | None, Identity]:
        """Verify the signature first: the body of an unsigned request is never parsed."""
        signed = self._signatures and self._signatures.verify(headers, body)
        call, payload = self._payloads.read(body)
        try:
            key = check_id(key_of(headers.get(IDEMPOTENCY_KEY), str(call.message_id)), IDEMPOTENCY_KEY)
            trusted = self._signatures is None or self._signatures.vouch(headers)
            actor = actor_of(headers) if trusted else None
        except (InvalidActor, InvalidKey) as error:
            raise Refused(422, f"{error.field}: {error.message}") from None
        if signed and signed != quoted(key.shown):
            raise Refused(422, f"{IDEMPOTENCY_KEY}: is not the id that was signed")
        return call, payload, actor, key


def _span(request: Request) -> str | None:
    """The ``traceparent`` of this call. `RequestContextMiddleware` around the application has made it already."""
    given = request.headers.getlist(TRACEPARENT)
    return RequestContext.current().traceparent or next_span(given[0] if len(given) == 1 else None)


def _refusal(status: int, reason: str, headers: Mapping[str, str] = MappingProxyType({})) -> HTTPException:
    """The answer, with the reason also in a header: the relay keeps no bodies, because they may hold payload."""
    reason = printable(reason)
    return HTTPException(status, reason, {REASON: quote(reason, safe=_PLAIN), **headers})


def _check(claim: Claim) -> None:
    match claim:
        case Claim.REPEATED:
            raise Refused(409, str(DuplicateMessage("this message was processed before")))
        case Claim.BUSY:
            raise Refused(503, "another call is processing this message now")
