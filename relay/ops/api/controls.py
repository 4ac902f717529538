"""Pauses and limits over HTTP, and the subscriptions of a context."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.controls import Limit, What
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import PROBLEMS, Asked, InContext
from relay.ops.api.models import Text
from relay.ops.kinds import CONTROLS
from relay.ops.limits import read_duration, read_limit
from relay.ops.requests import (
    LimitControl,
    ListControls,
    ListSubscriptions,
    PauseControl,
    RestoreLimit,
    ResumeControl,
)

router: Final = APIRouter(prefix="/contexts/{context}", tags=["contexts"], responses=PROBLEMS)
_MAX: Final = 200


class Controlled(BaseModel):
    """What a pause or a limit is about. ``name``: empty for ``publishing``. ``note``: why."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    what: What
    name: Annotated[str, StringConstraints(max_length=_MAX, pattern=r"^[^\x00]*$")] = ""
    note: Text | None = None

    def about(self, context: str, by: str) -> dict[str, Any]:
        """The same as the fields of a command."""
        return {"context": context, "what": self.what, "name": self.name, "by": Operator(by, self.note)}


class Lasting(Controlled):
    """``for``: how long it lasts, such as ``2h``. ``until``: when it ends. Neither: until it is taken back."""

    for_: Annotated[Text | None, Field(alias="for")] = None
    until: AwareDatetime | None = None

    def end(self) -> dict[str, Any]:
        """When it ends. Raises InvalidRequest."""
        return {"lasting": read_duration(self.for_, "for"), "until": self.until}


class Limited(Lasting):
    """``concurrency``: how many run at once. ``rate``: how many begin in a time, such as ``100/1m``.

    ``per_key``: the rate is of each key, and other keys go on. No number and no rate: the limit is lifted.
    """

    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    rate: Text | None = None
    per_key: bool = False

    def limit(self) -> Limit:
        """The limit. Raises InvalidRequest."""
        return read_limit(self.concurrency, self.rate, per_key=self.per_key)


class SubscriptionOut(BaseModel):
    """A subscription, and its settings. ``state``: runs, limited or paused; until when, by whom, and why.

    ``limit``: an operator's; it goes before ``configured_limit``, of relay.toml.
    """

    name: str
    state: str
    until: datetime | None
    by: str | None
    since: datetime | None
    reason: str | None
    limit: str | None
    handler: str
    stream: str
    durable: str
    filter_subject: str
    settle: str
    order: str
    max_ack_pending: int
    max_attempts: int
    configured_limit: str | None


class ControlOut(BaseModel):
    """A pause or a limit in force. ``act``: pause or limit. ``former``: the limit before."""

    what: What
    name: str
    act: str
    until: datetime | None
    limit: str | None
    former: str | None
    by: str
    since: datetime
    reason: str | None


class ControlDone(BaseModel):
    """What was done. ``was``: whether it was paused, or the limit before; after `restore`, the limit now."""

    what: What
    name: str
    action: str
    was: bool | str | None


@router.get(
    "/subscriptions",
    response_model=list[SubscriptionOut],
    name="list_subscriptions",
    description="List the subscriptions: their settings, and what is paused or limited.",
)
async def _list_subscriptions(ops: Asked, _: Reading, context: InContext) -> Response:
    return json_response((await ops.queries.ask_async(ListSubscriptions(context=context))).unwrap())


@router.get("/controls", response_model=list[ControlOut], name="list_controls", description=CONTROLS.listing)
async def _list_controls(ops: Asked, _: Reading, context: InContext) -> Response:
    found = (await ops.queries.ask_async(ListControls(context=context))).unwrap()
    return json_response([it.row() for it in found])


def _done(asked: Controlled, action: str, was: bool | str | None) -> Response:
    found: Mapping[str, Any] = {"what": asked.what.value, "name": asked.name, "action": action, "was": was}
    return json_response(found)


@router.post(
    "/controls/pause", response_model=ControlOut, name="pause", description=CONTROLS.action("pause").about
)
async def _pause(ops: Asked, caller: Operating, context: InContext, asked: Lasting) -> Response:
    result = await ops.do(PauseControl(**asked.about(context, caller.name), **asked.end()))
    return json_response(result.unwrap().row())


@router.post(
    "/controls/resume", response_model=ControlDone, name="resume", description=CONTROLS.action("resume").about
)
async def _resume(ops: Asked, caller: Operating, context: InContext, asked: Controlled) -> Response:
    result = await ops.do(ResumeControl(**asked.about(context, caller.name)))
    return _done(asked, "resume", result.unwrap())


@router.post(
    "/controls/limit", response_model=ControlDone, name="limit", description=CONTROLS.action("limit").about
)
async def _limit(ops: Asked, caller: Operating, context: InContext, asked: Limited) -> Response:
    command = LimitControl(**asked.about(context, caller.name), limit=asked.limit(), **asked.end())
    return _done(asked, "limit", str((await ops.do(command)).unwrap()))


@router.post(
    "/controls/restore", response_model=ControlDone, name="restore", description=CONTROLS.action("restore").about
)
async def _restore(ops: Asked, caller: Operating, context: InContext, asked: Controlled) -> Response:
    result = await ops.do(RestoreLimit(**asked.about(context, caller.name)))
    return _done(asked, "restore", str(result.unwrap()))
