"""Lists and details of rows: one pair of routes for every kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from relay.adapters.postgres.bounded import PAYLOAD
from relay.adapters.postgres.paging import MAX_COUNTED, Page, Row
from relay.bus import Nothing
from relay.bus.errors import NothingFound
from relay.domain.errors import of_context
from relay.domain.incidents import show_original
from relay.domain.personal import in_short
from relay.domain.tasks import is_type
from relay.ops.api.access import Caller, Reading, check_payloads
from relay.ops.api.common import Asked, InContext, Ops, page_of, payload_of
from relay.ops.api.models import models_of, values_of
from relay.ops.console.forms import checked, read
from relay.ops.console.render import page, parameters
from relay.ops.kinds import KINDS, Action, Kind, Order
from relay.ops.requests import GetRow, GroupRows

router: Final = APIRouter()
#: Fields of a query that choose a page, not rows.
_PAGING: Final = {"status", "before", "limit", "thorough", "order"}
#: How many rows a page may have.
_SIZES: Final = (50, 100, 200, 500)
#: The address of a page says from which pages somebody came, so that he can go back: the ends of at most so many.
_TRAIL: Final = "trail"
_MAX_TRAIL: Final = 50
_LONGEST: Final = 100
#: Filters whose field proposes values.
_CHOSEN: Final = {"subscription", "event_type", "type", "queue"}
#: Stands for the first page, which begins behind no row.
_NEWEST: Final = "newest"


class _Shown(BaseModel):
    """What a request for the page of one row names."""

    id: str
    payload: bool = False


async def _list(request: Request, ops: Ops, caller: Caller, context: str, kind: Kind) -> Response:
    asked, statuses = _read(request, ops, context, kind)
    wanted = kind.wanted(values_of(kind, asked), statuses)
    found: Page[Row] = await ops.recent.ask(ops, page_of(kind, context, wanted, asked))
    narrowed = bool(asked.model_dump(exclude_defaults=True, exclude=_PAGING))
    more = len(found.items) == asked.limit and found.total > asked.limit
    trail = [text for text in request.query_params.getlist(_TRAIL) if len(text) <= _LONGEST][-_MAX_TRAIL:]
    params = parameters(it for it in request.query_params.multi_items() if it[0] != _TRAIL)
    return page(
        request,
        "list.html",
        context=context,
        kind=kind,
        items=found.items,
        total=found.total,
        many=found.total >= MAX_COUNTED,
        unconfirmed=found.unconfirmed,
        reach=found.reach,
        thorough=asked.thorough,
        window=ops.limits.window,
        following=found.items[-1][kind.order] if more else None,
        params=params,
        trail=trail,
        passed=[*trail, params.get("before", [_NEWEST])[-1]][-_MAX_TRAIL:],
        newest=_NEWEST,
        oldest=asked.order is Order.OLDEST,
        sizes=_SIZES,
        limit=asked.limit,
        choices=_choices(ops, context, kind, found.items),
        statuses=statuses,
        narrowed=narrowed or bool(asked.status),
        actions=_offered(kind, caller, statuses),
        filters={name: values[-1] for name, values in params.items()},
        one_of=_one_of_all(ops, context, kind, params),
        groups=bool(kind.group and found.total),
        all_of=[it.name for it in _offered(kind, caller, statuses) if narrowed or not it.narrowed],
    )


def _read(request: Request, ops: Ops, context: str, kind: Kind) -> tuple[Any, Sequence[str]]:
    """What a page is asked for, and the states of its rows."""
    of_context(ops.settings.contexts, context)
    asked: Any = read(models_of(kind).page, (it for it in request.query_params.multi_items() if it[0] != _TRAIL))
    return asked, [str(getattr(it, "value", it)) for it in asked.status] or kind.usual


def _choices(ops: Ops, context: str, kind: Kind, rows: Sequence[Row]) -> Mapping[str, Sequence[str]]:
    """What fields of a filter propose: the subscriptions of relay.toml, and what the rows of the page have."""
    found = {
        it.name: sorted({str(row[it.name]) for row in rows if row.get(it.name)})
        for it in kind.filters
        if it.name in _CHOSEN
    }
    own = ops.settings.contexts[context].subscriptions
    return {name: sorted({*own, *values}) if name == "subscription" else values for name, values in found.items()}


def _one_of_all(ops: Ops, context: str, kind: Kind, params: Mapping[str, list[str]]) -> tuple[str, str] | None:
    """The page of the one subscription or type of tasks that a list is narrowed to, and its name."""
    name = params.get("type" if kind.path == "tasks" else "subscription", [""])[-1]
    if kind.path == "tasks":
        return ("task-types", name) if name and is_type(name) else None
    return ("subscriptions", name) if name in ops.settings.contexts[context].subscriptions else None


async def _grouped(request: Request, ops: Ops, context: str, kind: Kind) -> Response:
    """The counts by reason, which a list loads separately: counting may take longer than a page should."""
    asked, statuses = _read(request, ops, context, kind)
    groups = await _groups(ops, context, kind, asked, statuses)
    return page(
        request, "groups.html", context=context, kind=kind, groups=groups, here=f"/contexts/{context}/{kind.path}"
    )


async def _groups(ops: Ops, context: str, kind: Kind, asked: Any, statuses: Sequence[str]) -> Sequence[Any]:
    """How many rows there are of each reason, in the states that have a reason."""
    with_reason = kind.states if kind.text[0] == "reason" else kind.grouped
    if not kind.group or not (states := [it for it in statuses if it in with_reason]):
        return ()
    wanted = kind.wanted(values_of(kind, asked), states)
    query = GroupRows(kind=kind.path, context=context, wanted=wanted, thorough=asked.thorough)
    return await ops.recent.ask(ops, query)


def _offered(kind: Kind, caller: Caller, statuses: Sequence[str]) -> Sequence[Action]:
    """The actions for rows in these states, if the user may act."""
    return [it for it in kind.actions if caller.operate and {*it.fits} & {*statuses}]


async def _show(request: Request, ops: Ops, caller: Caller, context: str, kind: Kind) -> Response:
    of_context(ops.settings.contexts, context)
    asked = checked(_Shown, dict(request.query_params))
    if asked.payload:
        check_payloads(caller)
    query = GetRow(kind=kind.path, context=context, id=kind.key(asked.id), payload=asked.payload)
    found = await ops.queries.ask_async(query)
    if isinstance(found, Nothing):
        raise NothingFound(f"{context} has no {kind.one} {asked.id[:100]!r}", hint="it may be in the archive")
    row = dict(found.value)
    size = row.get("payload_bytes")
    cut = size is None or size > PAYLOAD
    if asked.payload and kind.body != "payload":
        row |= show_original(row.pop(kind.body), cut=cut)
    payload = row.pop("payload", None)
    if isinstance(payload, str):
        payload = in_short(payload)
    return page(
        request,
        (f"{kind.path}-one.html", "one.html"),
        context=context,
        kind=kind,
        row=row,
        id=asked.id,
        payload=payload,
        shown=asked.payload,
        cut=cut,
        actions=_offered(kind, caller, [row["status"]]),
    )


async def _download(request: Request, ops: Ops, caller: Caller, context: str, kind: Kind) -> Response:
    check_payloads(caller)
    asked = checked(_Shown, dict(request.query_params))
    return await payload_of(ops, kind, context, kind.key(asked.id))


def _download_of(kind: Kind) -> Any:
    async def downloaded(request: Request, ops: Asked, caller: Reading, context: InContext) -> Response:
        return await _download(request, ops, caller, context, kind)

    return downloaded


def _list_of(kind: Kind) -> Any:
    async def listed(request: Request, ops: Asked, caller: Reading, context: InContext) -> Response:
        return await _list(request, ops, caller, context, kind)

    return listed


def _groups_of(kind: Kind) -> Any:
    async def grouped(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
        return await _grouped(request, ops, context, kind)

    return grouped


def _one_of(kind: Kind) -> Any:
    async def shown(request: Request, ops: Asked, caller: Reading, context: InContext) -> Response:
        return await _show(request, ops, caller, context, kind)

    return shown


for _kind in KINDS.values():
    router.get(f"/contexts/{{context}}/{_kind.path}")(_list_of(_kind))
    router.get(f"/contexts/{{context}}/{_kind.path}/show")(_one_of(_kind))
    router.get(f"/contexts/{{context}}/{_kind.path}/payload")(_download_of(_kind))
    router.get(f"/contexts/{{context}}/{_kind.path}/groups")(_groups_of(_kind))
