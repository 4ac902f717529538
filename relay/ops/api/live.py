"""What happens now, as server-sent events: dead letters, deeds of operators, and how much waits.

One task asks the databases, while anybody listens. What it finds is kept for a while in one place, from which each
listener reads at its own pace: who is slow holds no memory, and who was away goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request
from pydantic_core import to_jsonable_python
from starlette.responses import Response

from relay.adapters.postgres.paging import Page, Row
from relay.bus.http import error_body
from relay.domain.errors import DatabaseUnreachable, RelayError
from relay.ops.api.access import NotAdmitted, Reading
from relay.ops.api.common import Ops
from relay.ops.api.lines import Parts
from relay.ops.kinds import DEAD_LETTERS
from relay.ops.requests import Backlog, FindRows, ReadAudit, ReadBacklog

router: Final = APIRouter()
EVENTS: Final = "text/event-stream"
_log: Final = logging.getLogger("relay.ops")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """How much listening may cost. Times are in seconds.

    ``listeners``: how many at once; ``of_one``: of one user. ``kept``: how many events who was away finds again.
    ``every_s``: between two looks at the databases; ``patience_s``: how long each may take. ``beat_s``: after so
    long without an event a comment says that the connection lives. ``rows``: of each kind in one look.
    """

    listeners: int = 64
    of_one: int = 8
    kept: int = 2_000
    every_s: float = 2.0
    patience_s: float = 5.0
    beat_s: float = 15.0
    rows: int = 100


class Live:
    """The events of the last minutes. ``reset`` tells a listener that some are lost: it reads its lists anew."""

    def __init__(self, ops: Ops, limits: LiveLimits) -> None:
        self._ops, self._limits = ops, limits
        #: Another process numbers its events anew.
        self._epoch = secrets.token_hex(4)
        self._events: deque[tuple[int, str, str]] = deque(maxlen=limits.kept)
        self._last = 0
        self._more = asyncio.Condition()
        self._listeners = Counter[str]()
        self._watch: asyncio.Task[None] | None = None
        self._seen: dict[tuple[str, str], frozenset[int]] = {}
        self._counts: dict[str, Any] = {}

    def listen(self, who: str, after: str | None) -> Response:
        """Return what happens from now on, or after the event with the id ``after``. Raises NotAdmitted."""
        limits = self._limits
        if self._listeners.total() >= limits.listeners or self._listeners[who] >= limits.of_one:
            raise NotAdmitted(503, "BUSY", "too many listen already", "close another page, or ask again later")
        self._listeners[who] += 1
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watching())

        def over() -> None:
            self._listeners[who] -= 1

        return Parts(self._told(self._place(after)), {"X-Accel-Buffering": "no"}, over, EVENTS)

    async def close(self) -> None:
        """Stop asking."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    def _place(self, after: str | None) -> int:
        """The number of the last event that a listener knows; -1 if that cannot be known."""
        if after is None:
            return self._last
        epoch, _, number = after.partition("-")
        known = epoch == self._epoch and number.isdecimal() and int(number) <= self._last
        return int(number) if known else -1

    async def _told(self, place: int) -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        for name, counts in self._counts.items():
            yield _event("", "counters", {"context": name, **counts})
        while True:
            first = self._events[0][0] if self._events else self._last + 1
            if place < first - 1:
                place = self._last
                yield _event(f"{self._epoch}-{place}", "reset", {})
            found = [it for it in self._events if it[0] > place]
            for number, kind, data in found:
                yield _written(f"{self._epoch}-{number}", kind, data)
                place = number
            if not found:
                try:
                    async with asyncio.timeout(self._limits.beat_s), self._more:
                        while self._last == place:
                            await self._more.wait()
                except TimeoutError:
                    yield b":\n\n"

    async def _watching(self) -> None:
        while self._listeners.total():
            names = list(self._ops.settings.contexts)
            try:
                await asyncio.gather(*map(self._look, names))
            except Exception as error:  # it must go on: others listen
                _log.error("a look for listeners failed: %s", type(error).__name__)
            await asyncio.sleep(self._limits.every_s)

    async def _look(self, context: str) -> None:
        try:
            async with asyncio.timeout(self._limits.patience_s):
                rows = await self._rows(context)
                counts = await self._backlog(context)
        except TimeoutError:
            late = DatabaseUnreachable(f"no answer within {self._limits.patience_s:g} s")
            rows, counts = {}, error_body(late)
        except RelayError as error:
            rows, counts = {}, error_body(error)
        told = [*self._new(context, rows)]
        if self._counts.get(context) != counts:
            self._counts[context] = counts
            told.append(("counters", {"context": context, **counts}))
        if told:
            async with self._more:
                for kind, data in told:
                    self._last += 1
                    self._events.append((self._last, kind, json.dumps(data)))
                self._more.notify_all()

    async def _rows(self, context: str) -> Mapping[str, Sequence[Row]]:
        """The newest dead letters and deeds."""
        ask, limit = self._ops.queries.ask_async, self._limits.rows
        wanted = DEAD_LETTERS.wanted({}, DEAD_LETTERS.states)
        letters: Page[Row] = (
            await ask(FindRows(kind=DEAD_LETTERS.path, context=context, wanted=wanted, limit=limit))
        ).unwrap()
        deeds = (await ask(ReadAudit(context=context, limit=limit))).unwrap()
        return {"incident": letters.items, "deed": deeds}

    async def _backlog(self, context: str) -> Any:
        found: Backlog = (await self._ops.queries.ask_async(ReadBacklog(context=context))).unwrap()
        outbox, inbox, *_ = found
        counts = {"outbox": asdict(outbox), "inbox": asdict(inbox)}
        for it in counts.values():
            # It changes without anything happening.
            del it["waiting_age_seconds"]
        return to_jsonable_python(counts)

    def _new(self, context: str, rows: Mapping[str, Sequence[Row]]) -> Sequence[tuple[str, Any]]:
        """The events for rows that the look before did not see; none at the first look.

        Numbers are given before their transactions commit. So one below the highest may come later.
        """
        told: list[tuple[str, Any]] = []
        for kind, found in rows.items():
            seen = self._seen.get((context, kind))
            self._seen[context, kind] = frozenset(row["id"] for row in found)
            if seen is None:
                continue
            lowest = min(seen, default=0) if len(seen) == self._limits.rows else 0
            new = [row for row in reversed(found) if row["id"] not in seen and row["id"] > lowest]
            if len(new) == self._limits.rows:
                told.append(("gap", {"context": context, "of": kind}))
            told += [(kind, to_jsonable_python({"context": context, **row}, inf_nan_mode="null")) for row in new]
        return told


def _event(id: str, kind: str, data: Any) -> bytes:
    return _written(id, kind, json.dumps(data))


def _written(id: str, kind: str, data: str) -> bytes:
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()


LastEvent = Annotated[str | None, Header(max_length=40)]


# Not in the document: OpenAPI has no word for an answer without an end.
@router.get("/stream", include_in_schema=False)
async def stream(request: Request, caller: Reading, last_event_id: LastEvent = None) -> Response:
    """Tell what happens, until the listener goes away."""
    live: Live = request.app.state.live
    return live.listen(caller.name, last_event_id)
