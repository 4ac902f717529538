"""Actions of operators on rows: a page counts the rows and asks, the action runs, and a page shows the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from relay.adapters.postgres.paging import Page, Row, counted
from relay.bus import Failed, Result
from relay.bus.errors import NothingFound
from relay.bus.http import status_of
from relay.domain.errors import InvalidRequest, TooMany, of_context
from relay.domain.moments import absolute
from relay.domain.operators import Operator, Outcome
from relay.ops.api.access import Operating
from relay.ops.api.common import Asked, InContext, Ops
from relay.ops.api.models import Text, models_of, values_of
from relay.ops.console.forms import Form, Pairs, read
from relay.ops.console.render import page
from relay.ops.kinds import KINDS, Action, Kind
from relay.ops.requests import ActOnRows, FindRows

router: Final = APIRouter()
_MAX_IDS: Final = 500
#: Fields of a form that are not of a filter.
_PAGING: Final = {"limit", "before", "thorough"}
_OWN: Final = {"ids", "all", "note", "status", *_PAGING}

KindPath = Annotated[str, Path(max_length=40)]


class _Asked(BaseModel):
    """The fields of a form besides a filter: ``ids``; or ``all`` rows in these states that the filter finds."""

    ids: Annotated[list[Text], Field(max_length=_MAX_IDS)] = []
    all: bool = False
    status: list[Text] = []
    note: Text | None = None


@dataclass(frozen=True, slots=True)
class _RowsChosen:
    """The rows that an action is for: ids, or the filter ``wanted``, which was made from ``filters``.

    ``arguments``: the texts of the action's fields.
    """

    context: str
    kind: Kind
    action: Action
    note: str | None
    arguments: Mapping[str, str]
    ids: Sequence[Any] | None
    wanted: Any
    filters: Sequence[tuple[str, str]]
    statuses: Sequence[str]

    async def count(self, ops: Ops) -> int:
        """How many rows the action is for. Raises TooMany."""
        if self.ids is not None:
            return len(self.ids)
        query = FindRows(kind=self.kind.path, context=self.context, wanted=self.wanted, limit=1)
        total = (await ops.queries.ask_async(query)).unwrap().total
        if total > ops.limits.rows:
            raise TooMany(
                f"the filter finds {counted(total)} and one form may change {ops.limits.rows:,}",
                hint="narrow the filter, for example by type or time",
            )
        return int(total)

    async def some(self, ops: Ops) -> Sequence[Row]:
        """The newest rows that the filter finds: the operator looks at them before the action."""
        if self.ids is not None:
            return ()
        query = FindRows(kind=self.kind.path, context=self.context, wanted=self.wanted, limit=5)
        found: Page[Row] = (await ops.queries.ask_async(query)).unwrap()
        return found.items


def _choose(ops: Ops, context: str, path: str, name: str, pairs: Pairs) -> _RowsChosen:
    of_context(ops.settings.contexts, context)
    kind = KINDS.get(path)
    action = next((it for it in kind.actions if it.name == name), None) if kind else None
    if kind is None or action is None:
        raise NothingFound("there is no such page")
    pairs = list(pairs)
    asked = read(_Asked, [it for it in pairs if it[0] in _OWN - _PAGING])
    arguments = {it: text for it, text in pairs if it in {own.name for own in action.arguments}}
    filters = [
        (it, absolute(text.strip()))
        for it, text in pairs
        if it not in _OWN and it not in arguments and text.strip()
    ]
    if bool(asked.ids) == asked.all:
        raise InvalidRequest("say which: tick rows of a list, or take all that its filter finds")
    statuses = [it for it in action.states if not asked.status or it in asked.status]
    ids = [kind.key(it) for it in dict.fromkeys(asked.ids)] or None
    wanted = None
    if ids is None:
        kind.check(action, dict(filters), every=not filters)
        wanted = kind.wanted(values_of(kind, read(models_of(kind).page, filters)), statuses)
    return _RowsChosen(context, kind, action, asked.note, arguments, ids, wanted, filters, statuses)


@router.get("/contexts/{context}/{path}/{name}")
async def ask(
    request: Request, ops: Asked, _: Operating, context: InContext, path: KindPath, name: KindPath
) -> Response:
    """Say how many rows an action is for, and ask for a note. Changes nothing."""
    chosen = _choose(ops, context, path, name, request.query_params.multi_items())
    return await _ask(request, ops, chosen)


async def _ask(
    request: Request, ops: Ops, chosen: _RowsChosen, missing: str = "", wrong: InvalidRequest | None = None
) -> Response:
    return page(
        request,
        "confirm.html",
        422 if missing or wrong else 200,
        context=chosen.context,
        chosen=chosen,
        count=await chosen.count(ops),
        some=await chosen.some(ops),
        missing=missing,
        wrong=wrong,
    )


@router.post("/contexts/{context}/{path}/{name}")
async def act(
    request: Request, ops: Asked, caller: Operating, context: InContext, path: KindPath, name: KindPath, form: Form
) -> Response:
    """Do the action, and say what happened to each row."""
    chosen = _choose(ops, context, path, name, form)
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
        by=Operator(caller.name, chosen.note),
    )
    return result_page(request, chosen, await ops.do(command), ops.limits.shown)


def result_page(request: Request, chosen: _RowsChosen, result: Result[Outcome], shown: int) -> Response:
    """The result of an action in words, with at most ``shown`` ids. Raises the error if it failed as a whole."""
    if isinstance(result, Failed):
        raise result.error
    outcome = result.value
    reasons = Counter((error.message, error.hint) for _, error in outcome.refused)
    status = status_of(outcome.refused[0][1]) if outcome.refused and not outcome.done else 200
    return page(
        request,
        "result.html",
        status,
        context=chosen.context,
        chosen=chosen,
        done=outcome.done[:shown],
        count=len(outcome.done),
        refused=outcome.refused[:shown],
        refusals=len(outcome.refused),
        reasons=reasons.most_common(5),
    )
