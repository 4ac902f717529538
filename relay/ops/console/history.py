"""The history of a context in the console: all series, and the charts of one."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from relay.domain.history import SPANS, Of
from relay.ops.api.access import Reading
from relay.ops.api.common import Asked, InContext
from relay.ops.api.history import HistoryAsked
from relay.ops.console.charts import charts_of, marks_of, totals_of
from relay.ops.console.forms import read
from relay.ops.console.render import page
from relay.ops.requests import ReadHistory

router: Final = APIRouter(prefix="/contexts/{context}")
#: Where the rows of a series are listed, by what it is about: the page, and the filter that has its name.
_ROWS: Final = {
    Of.OUTBOX: ("events", None),
    Of.SUBSCRIPTION: ("inbox", "subscription"),
    Of.TASK: ("tasks", "type"),
}


@router.get("/history")
async def history(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """Show what a context did over time; with ``of`` and ``name``, only one series of it."""
    asked = read(HistoryAsked, request.query_params.multi_items())
    query = ReadHistory(context=context, span=asked.span, of=asked.of, name=asked.name or "")
    found = (await ops.queries.ask_async(query)).unwrap()
    one = next(iter(found.series), None) if asked.of is not None else None
    drawn = totals_of(found) if asked.of is None else [] if one is None else charts_of(one)
    return page(
        request,
        "history.html",
        context=context,
        found=found,
        asked=asked,
        one=one,
        charts=drawn,
        marks=marks_of(found),
        spans=list(SPANS),
        rows=_ROWS,
        subscriptions=[*ops.settings.contexts[context].subscriptions],
    )
