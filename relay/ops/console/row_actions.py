"""Actions of operators on rows: a page counts the rows and asks, and the page of the deed shows what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from relay.adapters.postgres.paging import Page, Row, counted
from relay.adapters.postgres.row_operations import code_column
from relay.bus import Failed, Result
from relay.bus.errors import NothingFound
from relay.bus.http import status_of
from relay.domain.errors import InvalidRequest, TooMany, of_context
from relay.domain.moments import absolute
from relay.domain.operators import Operator, Outcome, Selected
from relay.ops import selections
from relay.ops.api.access import Operating
from relay.ops.api.common import Asked, InContext, Ops
from relay.ops.api.models import Text, models_of, wanted_of
from relay.ops.console.forms import Form, Pairs, read
from relay.ops.console.render import deed_path, page
from relay.ops.kinds import KINDS, Action, Kind
from relay.ops.requests import ActOnRows, FindRows, GetSelection

router: Final = APIRouter()
_MAX_IDS: Final = 500
#: How many rows that a filter finds the page shows which asks.
_SOME: Final = 5
#: How many of their reasons it counts.
_GROUPS: Final = 8
#: Fields of a form that are not of a filter.
_PAGING: Final = {"limit", "before", "thorough"}
_OWN: Final = {"ids", "all", "note", "status", "selection", *_PAGING}

KindPath = Annotated[str, Path(max_length=40)]


class _Asked(BaseModel):
    """The fields of a form besides a filter: ``ids``; or ``all`` rows in these states that the filter finds.

    Or the ``selection`` of rows that were counted.
    """

    ids: Annotated[list[Text], Field(max_length=_MAX_IDS)] = []
    all: bool = False
    selection: UUID | None = None
    status: list[Text] = []
    note: Text | None = None


@dataclass(frozen=True, slots=True)
class _RowsChosen:
    """The rows that an action is for: ids that were chosen or counted; or before that, a filter.

    ``filters``: how they were found, as JSON; None for ids that were chosen. ``arguments``: the texts of the
    action's fields. ``selection``: the name of the rows, once they are counted.
    """

    context: str
    kind: Kind
    action: Action
    note: str | None
    arguments: Mapping[str, str]
    ids: Sequence[Any] | None
    filters: Mapping[str, Any] | None
    statuses: Sequence[str]
    selection: UUID | None = None

    @property
    def wanted(self) -> Any:
        """The filter that found the rows, or None."""
        return None if self.filters is None else wanted_of(self.kind, self.filters, self.statuses)

    async def find(self, ops: Ops) -> Sequence[Row]:
        """The rows that the filter finds, oldest first. Raises TooMany."""
        limit = ops.limits.rows
        query = FindRows(kind=self.kind.path, context=self.context, wanted=self.wanted, limit=limit)
        found: Page[Row] = (await ops.queries.ask_async(query)).unwrap()
        if found.total > limit:
            raise TooMany(
                f"the filter finds {counted(found.total)} and one form may change {limit:,}",
                hint="narrow the filter, for example by type or time",
            )
        return found.all_of(limit)


async def _choose(ops: Ops, context: str, path: str, name: str, pairs: Pairs) -> _RowsChosen:
    of_context(ops.settings.contexts, context)
    kind = KINDS.get(path)
    action = next((it for it in kind.actions if it.name == name), None) if kind else None
    if kind is None or action is None:
        raise NothingFound("there is no such page")
    pairs = list(pairs)
    asked = read(_Asked, [it for it in pairs if it[0] in _OWN - _PAGING])
    arguments = {it: text for it, text in pairs if it in {own.name for own in action.arguments}}
    if bool(asked.ids) + asked.all + (asked.selection is not None) != 1:
        raise InvalidRequest("say which: tick rows of a list, or take all that its filter finds")
    if asked.selection is not None:
        rows = await selections.rows_of(ops, context, kind, action, asked.selection)
        return _RowsChosen(
            context, kind, action, asked.note, arguments, rows.ids, rows.filter, rows.states, asked.selection
        )
    filters = [
        (it, absolute(text.strip()))
        for it, text in pairs
        if it not in _OWN and it not in arguments and text.strip()
    ]
    statuses = [it for it in action.states if not asked.status or it in asked.status]
    if asked.ids:
        ids = [kind.key(it) for it in dict.fromkeys(asked.ids)]
        return _RowsChosen(context, kind, action, asked.note, arguments, ids, None, statuses)
    kind.check(action, dict(filters), every=not filters)
    found = read(models_of(kind).page, filters).model_dump(mode="json", exclude_defaults=True)
    return _RowsChosen(context, kind, action, asked.note, arguments, None, found, statuses)


@router.get("/contexts/{context}/{path}/{name}")
async def ask(
    request: Request, ops: Asked, _: Operating, context: InContext, path: KindPath, name: KindPath
) -> Response:
    """Count the rows that an action is for, keep which they are, and ask for a note. Changes none of them."""
    chosen = await _choose(ops, context, path, name, request.query_params.multi_items())
    return await _ask(request, ops, chosen)


async def _ask(
    request: Request, ops: Ops, chosen: _RowsChosen, missing: str = "", wrong: InvalidRequest | None = None
) -> Response:
    ids, some, groups = chosen.ids, list[Row](), Counter[tuple[str | None, str | None]]()
    if ids is None:
        rows = await chosen.find(ops)
        ids, some = [row["id"] for row in rows], [*rows[: -_SOME - 1 : -1]]
        code = code_column(chosen.kind.text[1])
        other = "subscription" if "subscription" in chosen.kind.table else chosen.kind.heading
        groups.update((row[code], row.get(other)) for row in rows)
    selection = chosen.selection
    if ids and selection is None:
        found = None if chosen.filters is None else selections.as_wanted(chosen.filters, chosen.statuses)
        selection = await selections.keep(ops, chosen.context, chosen.kind, chosen.action, ids, found)
    return page(
        request,
        "confirm.html",
        422 if missing or wrong else 200,
        context=chosen.context,
        chosen=chosen,
        count=len(ids),
        ids=ids[:8],
        some=some,
        groups=groups.most_common(_GROUPS) if len(groups) > 1 else [],
        rarer=max(0, len(groups) - _GROUPS),
        selection=selection,
        missing=missing,
        wrong=wrong,
    )


@router.post("/contexts/{context}/{path}/{name}")
async def act(
    request: Request, ops: Asked, caller: Operating, context: InContext, path: KindPath, name: KindPath, form: Form
) -> Response:
    """Do the action to the rows that were counted, once, and lead to the page of the deed."""
    if (deed := await used_by(ops, context, form)) is not None:
        return RedirectResponse(deed_path(context, deed), 303)
    chosen = await _choose(ops, context, path, name, form)
    if chosen.ids is None:
        return await _ask(request, ops, chosen, "Look at how many there are: these were not counted yet.")
    if chosen.action.needs_note and not chosen.note:
        return await _ask(request, ops, chosen, "Say why: the note is kept with it.")
    try:
        arguments = chosen.action.read(chosen.arguments)
    except InvalidRequest as error:
        return await _ask(request, ops, chosen, wrong=error)
    command = ActOnRows(
        kind=path,
        action=name,
        context=context,
        ids=chosen.ids,
        wanted=chosen.wanted,
        limit=ops.limits.rows,
        arguments=arguments,
        by=Operator(caller.name, chosen.note, selection=chosen.selection),
    )
    return await _told(request, ops, chosen, await ops.do(command))


async def _told(request: Request, ops: Ops, chosen: _RowsChosen, result: Result[Outcome]) -> Response:
    """The way to the page of the deed; or the page that says why nothing was done."""
    deed = None
    if isinstance(result, Failed):
        # Of two presses at once the other may have been faster.
        again = [("selection", str(chosen.selection or ""))]
        deed = await used_by(ops, chosen.context, again)
        if deed is None:
            raise result.error
    else:
        deed = result.value.deed
        if deed is None:
            return _nothing_done(request, chosen, result.value, ops.limits.shown)
    return RedirectResponse(deed_path(chosen.context, deed), 303)


async def used_by(ops: Ops, context: str, form: Pairs) -> int | None:
    """The act that has used the selection of a form, as after a press of Back: its page is shown again."""
    asked = read(_Used, [it for it in form if it[0] == "selection"])
    if asked.selection is None:
        return None
    of_context(ops.settings.contexts, context)
    found: Selected = (await ops.queries.ask_async(GetSelection(context=context, id=asked.selection))).unwrap()
    return found.deed


class _Used(BaseModel):
    selection: UUID | None = None


def _nothing_done(request: Request, chosen: _RowsChosen, outcome: Outcome, shown: int) -> Response:
    """Why nothing was done, with at most ``shown`` ids."""
    reasons = Counter((error.message, error.hint) for _, error in outcome.refused)
    return page(
        request,
        "result.html",
        status_of(outcome.refused[0][1]) if outcome.refused else 200,
        context=chosen.context,
        chosen=chosen,
        refused=outcome.refused[:shown],
        refusals=len(outcome.refused),
        reasons=reasons.most_common(5),
    )
