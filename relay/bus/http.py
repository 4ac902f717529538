"""What a result or an error of a bus is in HTTP, for any service with Starlette or FastAPI.

    app = FastAPI()
    answer_errors(app)

    @app.post("/cases")
    async def open_case(case: NewCase) -> Response:
        return as_response(await bus.dispatch_async(OpenCase(title=case.title)), ok=201)

A `Failed` is 422 with the code of its error, `Nothing` is 404, an outage 503. Every body of an error is
``{"error": {"code", "message", "field", "hint"}}``. Needs the extra ``handler``.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from pydantic_core import to_jsonable_python
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from relay.bus.errors import InvalidCommand, InvalidQuery, NothingFound, QueryFailed
from relay.bus.result import Failed, Nothing, Ok, Some
from relay.domain.archive import ArchiveBusy, ArchiveConflict, ArchiveOff
from relay.domain.controls import UnknownControl
from relay.domain.errors import (
    AlreadyProcessed,
    DomainError,
    DuplicateMessage,
    IncidentClosed,
    InvalidEvent,
    InvalidRequest,
    NotParked,
    NotPublishable,
    NotReopenable,
    NotReplayable,
    NotRequeueable,
    NotRetryable,
    NotStoppable,
    NotStopped,
    NotUndoable,
    Outage,
    OutboxFull,
    RelayError,
    SelectionUsed,
    Stale,
    TooMany,
    UnknownContext,
    UnknownIncident,
    UnknownMessage,
    UnknownQueue,
    UnknownSelection,
    UnreadableMessage,
    WriteConflict,
)
from relay.domain.life import UnknownId
from relay.domain.replays import ReplayRunning, UnknownReplay
from relay.domain.schedule import InvalidSchedule, NotPausable, UnknownJob
from relay.domain.tasks import InvalidTask, NotCancellable, UnknownTask

_log = logging.getLogger("relay")

_STATUSES: Final[tuple[tuple[int, tuple[type[RelayError], ...]], ...]] = (
    (404, (NothingFound, UnknownContext, UnknownId, UnknownIncident, UnknownJob, UnknownMessage, UnknownTask)),
    (404, (ArchiveOff, UnknownQueue, UnknownReplay, UnknownControl, UnknownSelection)),
    (422, (DomainError, InvalidCommand, InvalidQuery, InvalidRequest, InvalidEvent, InvalidTask, InvalidSchedule)),
    (409, (AlreadyProcessed, DuplicateMessage, IncidentClosed, TooMany, UnreadableMessage, WriteConflict)),
    (409, (NotParked, NotPublishable, NotReplayable, NotRequeueable, NotCancellable, NotRetryable)),
    (409, (NotStoppable, NotStopped, Stale, ReplayRunning)),
    (409, (ArchiveBusy, ArchiveConflict, NotPausable, NotReopenable, NotUndoable, SelectionUsed)),
    (503, (Outage, OutboxFull)),
    (502, (QueryFailed,)),
)


def status_of(error: BaseException) -> int:
    """The status of an error: 404, 409, 422, 502, 503; and 500 for what no caller can mend."""
    return next((status for status, kinds in _STATUSES if isinstance(error, kinds)), 500)


def error_body(error: RelayError) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"code": error.code, "message": error.message, "field": error.field, "hint": error.hint}}


def as_response(result: Ok[Any] | Failed | Some[Any] | Nothing, *, ok: int = 200) -> Response:
    """The response for what a bus returned. ``ok``: the status of a success."""
    match result:
        case Ok(value) | Some(value):
            return json_response(value, ok)
        case Failed(error):
            return json_response(error_body(error), status_of(error))
        case Nothing():
            return json_response(error_body(NothingFound("there is no such thing")), 404)


def json_response(value: Any, status: int = 200) -> Response:
    """Any value of the standard library's types as JSON. A float that JSON has no word for is null."""
    body = json.dumps(to_jsonable_python(value, inf_nan_mode="null")).encode()
    return Response(body, status, {"Cache-Control": "no-store"}, "application/json")


def answer_errors(app: Starlette) -> None:
    """Have an application answer every `RelayError` of its routes with its status and its code.

    Other exceptions stay as they are: 500 by the framework.
    """
    app.add_exception_handler(RelayError, _answer)


async def _answer(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RelayError)
    status = status_of(error)
    if status == 500:
        _log.error("answered with 500: %s", error.code)
    response = json_response(error_body(error), status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response
