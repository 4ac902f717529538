"""The page of pauses and limits of a context: what is in force, and the forms that change it."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from relay.domain.controls import Act, What
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import Asked, InContext
from relay.ops.api.controls import Limited
from relay.ops.console.confirmation import Confirmation, note_of
from relay.ops.console.forms import Form, Pairs, read
from relay.ops.console.render import page
from relay.ops.kinds import CONTROLS
from relay.ops.requests import (
    LISTED,
    LimitControl,
    ListControls,
    ListSubscriptions,
    PauseControl,
    RestoreLimit,
    ResumeControl,
)

router: Final = APIRouter(prefix="/contexts/{context}")
Verb = Literal["pause", "resume", "limit", "restore"]
#: What the form offers as the end of a pause or a limit.
_LASTING: Final = ("15m", "1h", "2h", "8h", "1d", "7d")


@router.get("/controls")
async def controls(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """List what is paused or limited, and what can be."""
    found = (await ops.queries.ask_async(ListControls(context=context))).unwrap()
    subscriptions = (await ops.queries.ask_async(ListSubscriptions(context=context))).unwrap()
    rows, most = [it.row() for it in found], LISTED
    paused = any(it.what is What.PUBLISHING and it.act is Act.PAUSE for it in found)
    return page(
        request,
        "controls.html",
        kind=CONTROLS,
        context=context,
        rows=rows,
        most=most,
        subscriptions=subscriptions,
        publishing_paused=paused,
    )


def _asked(pairs: Pairs) -> Limited:
    return read(Limited, [it for it in pairs if it[0] != "note"])


def _confirmation(context: str, verb: Verb, asked: Limited) -> Confirmation:
    action, base = CONTROLS.action(verb), f"/contexts/{context}/controls"
    subject = f"{asked.what.words} {asked.name}".rstrip()
    return Confirmation(
        button=action.label,
        question=f"{action.label}: {subject}?",
        about=action.about,
        done=action.done,
        to=f"{base}/{verb}",
        back=base,
        fields=[("what", asked.what.value), ("name", asked.name)],
        context=context,
    )


@router.get("/controls/{verb}")
async def ask_control(request: Request, _: Operating, context: InContext, verb: Verb) -> Response:
    """Ask before something is paused, limited, or goes on."""
    pairs = request.query_params.multi_items()
    asked = _asked(pairs) if dict(pairs).get("what") else None
    confirmation = None if asked is None else _confirmation(context, verb, asked)
    return page(
        request,
        "control-ask.html",
        context=context,
        verb=verb,
        action=CONTROLS.action(verb),
        confirmation=confirmation,
        lasting=_LASTING,
        whats=[it for it in What if verb == "pause" or it.limited],
        back=f"/contexts/{context}/controls",
    )


@router.post("/controls/{verb}")
async def do_control(
    request: Request, ops: Asked, caller: Operating, context: InContext, verb: Verb, form: Form
) -> Response:
    """Pause something, limit it, or let it go on."""
    asked = _asked(form)
    about = asked.about(context, caller.name) | {"by": Operator(caller.name, note_of(form))}
    match verb:
        case "pause":
            (await ops.do(PauseControl(**about, **asked.end()))).unwrap()
        case "resume":
            (await ops.do(ResumeControl(**about))).unwrap()
        case "limit":
            (await ops.do(LimitControl(**about, limit=asked.limit(), **asked.end()))).unwrap()
        case "restore":
            (await ops.do(RestoreLimit(**about))).unwrap()
    return _confirmation(context, verb, asked).result_page(request)
