"""Pages over all contexts at once: parked keys, schedules, audit logs. A line of the search lists the rest."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from relay.ops.api.access import Reading
from relay.ops.api.common import Asked
from relay.ops.api.contexts import AuditAsked
from relay.ops.api.everywhere import entries, jobs, parked_keys
from relay.ops.console.forms import read
from relay.ops.console.render import page
from relay.ops.kinds import AUDIT, JOBS, PARKED

router: Final = APIRouter(prefix="/all")
_MOST: Final = 200


@router.get("/parked")
async def parked(request: Request, ops: Asked, _: Reading) -> Response:
    """List the parked keys of all contexts."""
    return page(request, "everywhere.html", kind=PARKED, found=await parked_keys(ops, _MOST))


@router.get("/schedule")
async def schedule(request: Request, ops: Asked, _: Reading) -> Response:
    """List the jobs of all contexts."""
    return page(request, "everywhere.html", kind=JOBS, found=await jobs(ops, _MOST))


@router.get("/audit")
async def audit(request: Request, ops: Asked, _: Reading) -> Response:
    """Show who did what in all contexts."""
    asked = read(AuditAsked, request.query_params.multi_items())
    found = await entries(ops, asked)
    for row in found["items"]:
        row["ids"] = ", ".join(row["ids"][:3]) + (", …" if row["count"] > 3 else "")
    return page(request, "everywhere.html", kind=AUDIT, found=found)
