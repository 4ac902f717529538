"""The routes of each kind of rows: list, group, show, and its actions, made from its description."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from relay.adapters.postgres.bounded import PAYLOAD
from relay.adapters.postgres.paging import Page, Row
from relay.domain.foreign_json import read_json
from relay.domain.incidents import show_original
from relay.domain.operators import Operator
from relay.ops import selections
from relay.ops.api.access import Caller, Operating, Reading, check_payloads
from relay.ops.api.answers import in_json
from relay.ops.api.common import (
    PROBLEMS,
    Asked,
    InContext,
    Ops,
    counted,
    lines_of,
    outcome_of,
    page_of,
    paged,
    payload_of,
    row_of,
)
from relay.ops.api.lines import IN_LINES, Lined
from relay.ops.api.models import KEYS, OutcomeOut, PageOut, Selection, models_of, values_of, wanted_of
from relay.ops.api.rows_out import details_model, group_model, list_model
from relay.ops.kinds import Action, Kind
from relay.ops.kinds.model import either
from relay.ops.requests import ActOnRows, FindRows, GetRow, GroupRows

#: What a download is, for the OpenAPI document.
_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


def router_of(kind: Kind) -> APIRouter:
    """Return the routes of a kind, below its context."""
    base, tag = f"/contexts/{{context}}/{kind.path}", kind.path.replace("-", " ")
    router = APIRouter(prefix=base, tags=[tag], responses=PROBLEMS)
    router.get("", response_model=list_model(kind, PageOut), responses=IN_LINES)(_list(kind))
    if kind.group:
        router.get("/groups", response_model=_several(group_model(kind)))(_group(kind))
    router.get("/{id}", response_model=details_model(kind))(_show(kind))
    router.get("/{id}/payload", response_class=StreamingResponse, responses=_FILE)(_download(kind))
    for action in kind.actions:
        router.post(f"/{action.name}", response_model=OutcomeOut)(_act(kind, action))
    return router


def _several(model: Any) -> Any:
    return list[model]


def _list(kind: Kind) -> Any:
    async def route(ops: Any, _: Any, context: Any, asked: Any, lined: Any) -> Response:
        wanted = kind.wanted(values_of(kind, asked), _states(asked) or kind.usual)
        query = page_of(kind, context, wanted, asked)
        if lined:
            return await lines_of(ops, kind, query, "limit" in asked.model_fields_set)
        return await paged(ops, kind, query)

    which: Any = Annotated[models_of(kind).page, Query()]
    return _declared(route, f"list_{kind.noun}", kind.listing, Reading, asked=which, lined=Lined)


def _group(kind: Kind) -> Any:
    async def route(ops: Any, _: Any, context: Any, asked: Any) -> Response:
        wanted = kind.wanted(values_of(kind, asked), _states(asked) or kind.grouped)
        query = GroupRows(kind=kind.path, context=context, wanted=wanted)
        return in_json(await ops.recent.ask(ops, query))

    about = f"Count {kind.many}, by default {either(kind.grouped)} ones, by the code of their {kind.text[0]}"
    about = f"{about} and by their {kind.group}, among the newest 10,000."
    which: Any = Annotated[models_of(kind).page, Query()]
    return _declared(route, f"group_{kind.noun}", about, Reading, asked=which)


def _states(asked: Any) -> list[str]:
    return [str(getattr(it, "value", it)) for it in asked.status]


def _show(kind: Kind) -> Any:
    async def route(ops: Any, caller: Any, context: Any, id: Any, payload: Any = False) -> Response:
        if payload:
            check_payloads(caller)
        row = await row_of(ops, GetRow(kind=kind.path, context=context, id=kind.key(str(id)), payload=payload))
        if isinstance(row, Response):
            return row
        body = _body(kind, row) if payload else {}
        return in_json({**row, **body})

    about = f"Show one {kind.one}: {kind.shows}. Its payload needs the right to see payloads."
    name = f"show_{kind.one.replace(' ', '_')}"
    return _declared(route, name, about, Reading, id=KEYS[kind.id], payload=bool)


def _download(kind: Kind) -> Any:
    async def route(ops: Any, caller: Any, context: Any, id: Any) -> Response:
        check_payloads(caller)
        return await payload_of(ops, kind, context, kind.key(str(id)))

    about = f"Download the whole payload of one {kind.one}. This needs the right to see payloads."
    name = f"download_{kind.one.replace(' ', '_')}"
    return _declared(route, name, about, Reading, id=KEYS[kind.id])


def _body(kind: Kind, row: dict[str, Any]) -> Mapping[str, Any]:
    """Take the payload out of a row, as JSON shows it."""
    size = row["payload_bytes"]
    cut = {"payload_cut": True} if size is None or size > PAYLOAD else {}
    if kind.body != "payload":
        return show_original(row.pop(kind.body), cut=bool(cut)) | cut
    text = row.pop("payload")
    return {"payload": text if cut else read_json(text)} | cut


def _act(kind: Kind, action: Action) -> Any:
    async def route(ops: Any, caller: Any, context: Any, chosen: Any) -> Response:
        return await _acted(ops, caller, context, kind, action, chosen)

    model = models_of(kind).action(action)
    return _declared(route, f"{action.name}_{kind.noun}", action.about, Operating, chosen=model)


async def _acted(
    ops: Ops, caller: Caller, context: str, kind: Kind, action: Action, chosen: Selection[Any, Any]
) -> Response:
    arguments = action.read({it.name: str(getattr(chosen, it.name)) for it in action.arguments})
    rows = await _chosen(ops, context, kind, action, chosen)
    if chosen.dry_run:
        return await _counted(ops, context, kind, action, chosen, rows)
    command = ActOnRows(
        kind=kind.path,
        action=action.name,
        context=context,
        ids=rows.ids,
        wanted=None if rows.filter is None else wanted_of(kind, rows.filter, rows.states),
        limit=chosen.limit,
        arguments=arguments,
        by=Operator(caller.name, chosen.note, selection=chosen.selection),
    )
    return outcome_of(action.name, await ops.do(command), context)


async def _chosen(
    ops: Ops, context: str, kind: Kind, action: Action, chosen: Selection[Any, Any]
) -> selections.Counted:
    """The rows that a request is for: those of its selection; or ids, or a filter as it was given."""
    if chosen.selection is not None:
        return await selections.rows_of(ops, context, kind, action, chosen.selection)
    filters = chosen.filter.model_dump(mode="json", exclude_defaults=True) if chosen.filter else {}
    kind.check(action, filters, every=chosen.all)
    if chosen.ids is not None:
        return selections.Counted([kind.key(str(id), "ids") for id in chosen.ids], None, ())
    return selections.Counted(None, filters, action.states)


async def _counted(
    ops: Ops, context: str, kind: Kind, action: Action, chosen: Selection[Any, Any], rows: selections.Counted
) -> Response:
    ids, found = rows.ids, None
    if ids is None:
        found = selections.as_wanted(rows.filter or {}, rows.states)
        wanted = wanted_of(kind, rows.filter or {}, rows.states)
        query = FindRows(kind=kind.path, context=context, wanted=wanted, limit=chosen.limit)
        page: Page[Row] = (await ops.queries.ask_async(query)).unwrap()
        ids = [row["id"] for row in page.all_of(chosen.limit)]
    kept = chosen.selection or await selections.keep(ops, context, kind, action, ids, found)
    return counted(action.name, len(ids), kept)


def _declared(route: Any, name: str, about: str, caller: Any, **parameters: Any) -> Any:
    """Name a route, and declare its parameters: the framework reads both for requests and for the document."""
    ops, user, context, *_ = inspect.signature(route).parameters
    route.__name__, route.__doc__ = name, about
    route.__annotations__ = {ops: Asked, user: caller, context: InContext, **parameters, "return": Response}
    return route
