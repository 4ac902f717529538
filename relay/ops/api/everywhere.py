"""Lists over all contexts at once: the newest of each, with the name of its context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from relay.adapters.postgres.paging import Page, Row
from relay.domain.moments import EARLIEST
from relay.ops.api.access import Reading
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, Ops, page_of
from relay.ops.api.contexts import AuditAsked, AuditEntry, ParkedKey, ScheduledJob
from relay.ops.api.models import models_of, values_of
from relay.ops.api.rows_out import row_model
from relay.ops.everywhere import Everywhere, everywhere
from relay.ops.kinds import AUDIT, JOBS, KINDS, PARKED, Kind
from relay.ops.requests import ListParked, ReadAudit, ReadSchedule

router: Final = APIRouter(tags=["all contexts"], responses=PROBLEMS)
Limit = Annotated[int, Query(ge=1, le=500, description="At most so many rows in all.")]


class EverywhereOut(BaseModel):
    """Rows of all contexts. ``cut``: whether there are more. ``unread``: why contexts did not answer."""

    items: list[Any]
    cut: bool
    unread: dict[str, str]


def _model(row: type[BaseModel]) -> Any:
    """The model of a list of rows that have the name of their context."""
    named: Any = create_model(
        f"{row.__name__}InContext",
        __base__=row,
        __doc__=row.__doc__,
        context=(str, Field(description="The context that has it.", examples=["sea"])),
    )
    items: Any = list[named]
    field = (items, Field(description="The rows."))
    return create_model(
        f"{row.__name__}Everywhere", __base__=EverywhereOut, __doc__=EverywhereOut.__doc__, items=field
    )


def merged(found: Everywhere[Sequence[Any]], limit: int, at: str, *, newest: bool = True) -> dict[str, Any]:
    """The answer with the rows of all contexts, by the time in the column ``at``."""
    rows = [{"context": name, **row} for name, part in found.answers.items() for row in part]
    times: Callable[[Row], datetime] = lambda row: row[at] or EARLIEST  # noqa: E731
    rows.sort(key=times, reverse=newest)
    return {"items": rows[:limit], "cut": len(rows) > limit, "unread": found.unread}


def _of_kind(kind: Kind) -> Any:
    async def route(ops: Ops, _: Any, asked: Any) -> Response:
        states = [str(getattr(it, "value", it)) for it in asked.status] or kind.usual
        wanted = kind.wanted(values_of(kind, asked), states)

        async def one(name: str) -> Sequence[Row]:
            query = page_of(kind, name, wanted, asked)
            page: Page[Row] = await ops.recent.ask(ops, query.model_copy(update={"limit": asked.limit + 1}))
            return page.items

        contexts = [name for name, it in ops.settings.contexts.items() if kind.fits(it)]
        return in_json(merged(await everywhere(contexts, one), asked.limit, kind.began))

    route.__name__ = f"list_all_{kind.noun}"
    route.__doc__ = f"{kind.listing} Of all contexts; one that does not answer within 5 s is named."
    asked: Any = Annotated[models_of(kind).page, Query()]
    route.__annotations__ = {"ops": Asked, "_": Reading, "asked": asked, "return": Response}
    return route


for _kind in KINDS.values():
    router.get(f"/{_kind.path}", response_model=_model(row_model(_kind)))(_of_kind(_kind))


@router.get("/parked", response_model=_model(ParkedKey), name="list_all_parked_keys", description=PARKED.listing)
async def _parked(ops: Asked, _: Reading, limit: Limit = 50) -> Response:
    return in_json(await parked_keys(ops, limit))


@router.get("/schedule", response_model=_model(ScheduledJob), name="list_all_jobs", description=JOBS.listing)
async def _schedule(ops: Asked, _: Reading, limit: Limit = 500) -> Response:
    return in_json(await jobs(ops, limit))


@router.get("/audit", response_model=_model(AuditEntry), name="read_all_audit", description=AUDIT.listing)
async def _audit(ops: Asked, _: Reading, asked: Annotated[AuditAsked, Query()]) -> Response:
    return in_json(await entries(ops, asked))


async def parked_keys(ops: Ops, limit: int) -> dict[str, Any]:
    """The parked keys of all contexts, the longest parked first."""

    async def one(name: str) -> Sequence[Row]:
        return (await ops.queries.ask_async(ListParked(context=name, limit=limit + 1))).unwrap()

    return merged(await everywhere(ops.settings.contexts, one), limit, "since", newest=False)


async def jobs(ops: Ops, limit: int) -> dict[str, Any]:
    """The jobs of all schedules, the last that ran first."""

    async def one(name: str) -> Sequence[Row]:
        found = (await ops.queries.ask_async(ReadSchedule(context=name, limit=limit + 1))).unwrap()
        return [asdict(it) for it in found.jobs]

    return merged(await everywhere(ops.settings.contexts, one), limit, "last_run_at")


async def entries(ops: Ops, asked: AuditAsked) -> dict[str, Any]:
    """The audit logs of all contexts, the newest first."""

    async def one(name: str) -> Sequence[Row]:
        values = asked.model_dump() | {"limit": asked.limit + 1}
        return (await ops.queries.ask_async(ReadAudit(context=name, **values))).unwrap()

    return merged(await everywhere(ops.settings.contexts, one), asked.limit, "at")
