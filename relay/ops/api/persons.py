"""Persons over HTTP, in all contexts: what is held about one, the certificate, and to forget."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading, check_payloads
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, Ops
from relay.ops.api.everywhere import Limit
from relay.ops.api.lines import IN_LINES, Lined, in_lines
from relay.ops.api.models import Text
from relay.ops.export import FindHeld, HeldRow
from relay.ops.forgetting import ForgetPerson, ReadCertificate
from relay.ops.kinds import PERSONS

router: Final = APIRouter(tags=["all contexts"], responses=PROBLEMS)
_FORGET: Final = PERSONS.action("forget")
#: How many rows about a person are sent at once.
_PART: Final = 100
#: How many rows an answer has that is not in lines, unless it is asked for another number.
_FIRST: Final = 50
#: How long the first rows are looked for, in seconds.
_PATIENCE_S: Final = 8.0
Person = Annotated[Text, Query(description="The person, as in the field that `subject` of an event names.")]


class ToForget(BaseModel):
    """Whom to forget, and why. ``context``: only there; in every context if it is not given."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    subject: Text
    note: Text
    context: Text | None = None


class DestroyedKeyOut(BaseModel):
    """A destroyed key: when it was made and destroyed, by whom, and by which act of the audit log."""

    id: UUID
    made: datetime
    destroyed: datetime
    by: str | None
    deed: int | None


class ForgottenIn(BaseModel):
    """The keys of the person in a context. ``already``: an earlier act did it. ``left``: how many are left."""

    context: str
    already: bool
    keys: list[DestroyedKeyOut]
    left: int


class CertificateOut(BaseModel):
    """What is destroyed of a person. ``complete``: no key is left, and all answered.

    ``unread``: why contexts did not answer.
    """

    subject: str
    complete: bool
    contexts: list[ForgottenIn]
    unread: dict[str, str]


class HeldRowOut(BaseModel):
    """A row about a person. ``kind``: events, inbox, dead-letters, tasks, or archive and one of these.

    ``state``: of its values: plain, forgotten or encrypted. ``at``: when it came to be.
    """

    context: str
    kind: str
    id: str
    at: datetime | str | None
    type: str | None
    subscription: str | None
    state: str
    payload: Any


class HeldRowsOut(BaseModel):
    """The first rows about a person. ``cut``: whether there are, or may be, more."""

    items: list[HeldRowOut]
    cut: bool


@router.get("/forget", response_model=CertificateOut, name="show_certificate", description=PERSONS.listing)
async def _show(ops: Asked, _: Reading, subject: Person) -> Response:
    return in_json((await ops.queries.ask_async(ReadCertificate(subject=subject))).unwrap().as_dict())


@router.post(
    "/forget",
    response_model=CertificateOut,
    name="forget_person",
    description=f"{_FORGET.about} The answer is the certificate. If it is not `complete`, ask again.",
)
async def _forget(ops: Asked, caller: Operating, asked: ToForget) -> Response:
    by = Operator(caller.name, asked.note)
    command = ForgetPerson(subject=asked.subject, context=asked.context, by=by)
    return in_json((await ops.do(command)).unwrap().as_dict())


@router.get(
    "/export",
    response_model=HeldRowsOut,
    responses=IN_LINES,
    name="export_person",
    description="What is held about a person: rows with a value that a key of the person encrypts, in plain text "
    "unless it is forgotten or the master key is missing. Lines have all of it. Needs the right to see payloads.",
)
async def _export(
    ops: Asked, caller: Reading, subject: Person, lined: Lined, limit: Limit | None = None
) -> Response:
    check_payloads(caller)
    if lined:
        return await held_in_lines(ops, subject, limit)
    rows, cut = await held(ops, subject, limit or _FIRST)
    return in_json({"items": [asdict(it) for it in rows], "cut": cut})


async def held(ops: Ops, subject: str, limit: int) -> tuple[list[HeldRow], bool]:
    """The first rows about a person, and whether there are or may be more: it looks for a limited time."""
    found: list[HeldRow] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            async for row in (await ops.queries.ask_async(FindHeld(subject=subject))).unwrap():
                if len(found) == limit:
                    return found, True
                found.append(row)
            return found, False
    return found, True


async def held_in_lines(ops: Ops, subject: str, limit: int | None = None) -> Response:
    """All rows about a person, or the first, as lines."""
    rows = (await ops.queries.ask_async(FindHeld(subject=subject))).unwrap()

    async def part(_: Any) -> tuple[list[dict[str, Any]], Any]:
        found: list[dict[str, Any]] = []
        async for row in rows:
            found.append(asdict(row))
            if len(found) == limit:
                return found, None
            if len(found) == _PART and limit is None:
                return found, True
        return found, None

    return await in_lines(ops.downloads, part)
