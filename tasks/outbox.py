"""Scheduling: a task is a row that the caller's transaction writes.

Nothing here commits, and no task runs before the caller's transaction commits. With a SQLAlchemy session the
row is written at the commit; with a connection it is written at once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, overload
from uuid import UUID

from uuid_utils.compat import uuid7

from relay.adapters.postgres.captured_rows import capture
from relay.adapters.postgres.targets import AsyncTarget, SyncTarget, write
from relay.bus import RequestContext
from relay.bus.context import created
from relay.domain.errors import InvalidPayload, InvalidTimestamp, PayloadTooLarge
from relay.domain.identity import Id, identified
from relay.domain.limits import check_schema, encode_payload
from relay.domain.model import Lifespan
from relay.domain.personal import HERE, Personal, PersonalFields, places
from relay.domain.tasks import DEFAULT_PRIORITY, DEFAULT_QUEUE, BackgroundTask, InvalidTask
from relay.domain.traceparent import TRACEPARENT, trace_id
from relay.settings import needed_masters
from tasks.registry import TaskRegistry, plain, registry

#: The longest payload, in bytes of JSON: tasks carry ids, not documents.
MAX_PAYLOAD_BYTES: Final = 262_144
MAX_METADATA_BYTES: Final = 8_192

Task = str | Callable[..., Any]


@overload
def schedule(target: SyncTarget, task: Task, payload: object, **options: Any) -> UUID: ...
@overload
def schedule(target: AsyncTarget, task: Task, payload: object, **options: Any) -> Awaitable[UUID]: ...
def schedule(
    target: SyncTarget | AsyncTarget, task: Task, payload: object, **options: Any
) -> UUID | Awaitable[UUID]:
    """Record a task in the open transaction of ``target``; returns its id, awaitable with an async target.

    ``task``: a decorated function or its type. Options and errors are those of `background_task`. It also raises
    UnsupportedTarget and NoTransaction.
    """
    row = background_task(task, payload, **options)
    return write(target, [row], row.id)


def background_task(  # noqa: PLR0913 - each column is one keyword
    task: Task,
    payload: object,
    *,
    delay: timedelta | None = None,
    available_at: datetime | None = None,
    expires_at: datetime | None = None,
    expires_in: timedelta | None = None,
    queue: str | None = None,
    priority: int | None = None,
    id: UUID | None = None,
    correlation_id: Id | None = None,
    causation_id: Id | None = None,
    metadata: Mapping[str, Any] | None = None,
    schema: str | None = None,
    registered: bool = True,
    within: TaskRegistry = registry,
) -> BackgroundTask:
    """Check a task and fill in the defaults; correlation and trace come from the `RequestContext`.

    ``delay`` or ``available_at``: the earliest start. ``expires_at``, or ``expires_in`` so long after that: it is
    not run from then on; without both, its type says. ``schema``: where the tables of the context are, as in
    relay.toml; without it the search_path of the target finds them.
    ``registered=False``: the handler lives in another process. Then its name and payload cannot be checked here,
    and concurrency limits do not hold. Raises UnknownTask, InvalidPayload, PayloadTooLarge and InvalidTask.
    """
    key = sealing = None
    if registered:
        handler = within.named(task)
        task, queue = handler.type, queue or handler.queue
        priority = handler.priority if priority is None else priority
        text, key = handler.encode(payload)
        sealing = None if handler.personal is None else _encrypting(handler.personal, text)
        if expires_at is None and expires_in is None:
            expires_in = handler.expires_in
    elif isinstance(task, str):
        text = encode_payload(plain(payload))
    else:
        raise InvalidTask("pass the type of a task that is registered elsewhere", field="task")
    _check_size(text, MAX_PAYLOAD_BYTES, "payload")
    request = RequestContext.current()
    id = uuid7() if id is None else id
    causation_id = request.causation_id if causation_id is None else causation_id
    [_, correlation, causation], originals = identified(
        None, correlation_id or request.correlation_id, causation_id
    )
    return BackgroundTask(
        id=id,
        type=task,
        payload=text,
        queue=queue or DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY if priority is None else priority,
        available_at=available_at,
        delay=delay,
        concurrency_key=key,
        # A task outside a request begins its own chain.
        correlation_id=correlation or id,
        causation_id=causation,
        metadata=_traced(_metadata(metadata or {}), request, task, id),
        originals=originals,
        schema=check_schema(schema),
        lifespan=_lifespan(expires_at, expires_in),
        personal=sealing,
    )


def _encrypting(fields: PersonalFields, payload: str) -> Personal | None:
    """What encrypts the personal values of a payload; None if it has none. Raises ConfigurationError."""
    content = json.loads(payload)
    if not places(content, fields) or capture() is not None:  # a test that takes rows wants to read them
        return None
    return Personal(HERE, fields.subject_of(content), fields, needed_masters())


def _lifespan(expires_at: datetime | None, expires_in: timedelta | None) -> Lifespan | None:
    if expires_at is None and expires_in is None:
        return None
    try:
        return Lifespan(None, expires_at, expires_in)
    except InvalidTimestamp as error:
        raise InvalidTask(error.message, field=error.field) from None


def _traced(metadata: Mapping[str, Any], request: RequestContext, name: str, id: UUID) -> Mapping[str, Any]:
    """The metadata of a task within a trace. A value that the caller has set stays."""
    if TRACEPARENT in metadata:
        return metadata
    traceparent = created(request, name, id)
    return metadata if trace_id(traceparent) is None else {TRACEPARENT: traceparent, **metadata}


def _metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        _check_size(encode_payload(dict(metadata)), MAX_METADATA_BYTES, "metadata")
    except InvalidPayload as error:
        raise InvalidTask(error.message, field="metadata") from None
    return metadata


def _check_size(text: str, limit: int, field: str) -> None:
    size = len(text.encode())
    if size > limit:
        raise PayloadTooLarge(
            f"takes {size} bytes, the limit is {limit}",
            field=field,
            hint="store the content elsewhere and pass its id",
        )
