"""The page of a subscription, and that of a type of tasks: all that is known of it now, and its history."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from relay.domain.controls import What
from relay.domain.history import SPANS, Of
from relay.domain.work import COUNTED, WAITS, Work
from relay.ops.api.access import Reading
from relay.ops.api.common import Asked, InContext, Ops
from relay.ops.api.work import WorkAsked
from relay.ops.console.charts import charts_of, marks_of
from relay.ops.console.forms import read
from relay.ops.console.render import link, page
from relay.ops.console.wording import LATE
from relay.ops.kinds import CONTROLS
from relay.ops.work import ReadWork

router: Final = APIRouter(prefix="/contexts/{context}")
#: Where its rows are listed: the page, and the filter that has its name.
_ROWS: Final = {Of.SUBSCRIPTION: ("inbox", "subscription"), Of.TASK: ("tasks", "type")}
#: The states of tasks that the list of tasks calls by others.
_TASKS: Final = {"waiting": ("pending", "delivered"), "failing": ("delivered",), "delayed": ("pending",)}


@router.get("/subscriptions/{name:path}")
async def subscription(request: Request, ops: Asked, _: Reading, context: InContext, name: str) -> Response:
    """Show a subscription."""
    return await _shown(request, ops, context, Of.SUBSCRIPTION, name)


@router.get("/task-types/{name:path}")
async def task_type(request: Request, ops: Asked, _: Reading, context: InContext, name: str) -> Response:
    """Show a type of tasks."""
    return await _shown(request, ops, context, Of.TASK, name)


async def _shown(
    request: Request, ops: Ops, context: str, of: Literal[Of.SUBSCRIPTION, Of.TASK], name: str
) -> Response:
    asked = read(WorkAsked, request.query_params.multi_items())
    query = ReadWork(context=context, of=of, name=name, span=asked.span)
    found = (await ops.queries.ask_async(query)).unwrap()
    return page(
        request,
        "work.html",
        context=context,
        work=found,
        span=asked.span,
        spans=list(SPANS),
        charts=[] if found.series is None else charts_of(found.series),
        marks=marks_of(found.history),
        controls=_controls(found),
        kind=CONTROLS,
        rows_of=lambda *states: _rows(found, states),
        waits=WAITS,
        most=COUNTED - 1,
        late_after=LATE[_ROWS[of][0]],
    )


def _rows(work: Work, states: tuple[str, ...]) -> str:
    """The address of its rows in these states; of none where no list has them."""
    path, filter_ = _ROWS[work.of]
    if work.of is Of.TASK:
        named = [one for it in states for one in _TASKS.get(it, (it,))]
        states = tuple(dict.fromkeys("failed" if it == "dead" else it for it in named if it != "parked"))
    elif states == ("dead",):
        return link(f"/contexts/{work.context}/dead-letters", subscription=work.name)
    return link(f"/contexts/{work.context}/{path}", **{filter_: work.name}, status=states)


def _controls(work: Work) -> list[tuple[str, str, str]]:
    """The buttons: verb, label, address. What is paused can go on."""
    what = What.SUBSCRIPTION if work.of is Of.SUBSCRIPTION else What.TASK_TYPE
    mine = {it.act.value for it in work.controls if it.what is what}
    verbs = ["resume" if "pause" in mine else "pause", "limit", *(["restore"] if "limit" in mine else [])]
    base = f"/contexts/{work.context}/controls"
    return [(it, CONTROLS.action(it).label, link(f"{base}/{it}", what=what.value, name=work.name)) for it in verbs]
