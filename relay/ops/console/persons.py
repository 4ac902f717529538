"""Pages about a person, in all contexts: what is held, the certificate, and to forget."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading, check_payloads
from relay.ops.api.common import Asked, Ops
from relay.ops.api.models import Text
from relay.ops.api.persons import held, held_in_lines
from relay.ops.console.confirmation import Confirmation, note_of
from relay.ops.console.forms import Form, read
from relay.ops.console.render import link, page
from relay.ops.console.wording import plural
from relay.ops.export import HeldRow
from relay.ops.forgetting import ForgetPerson, PersonCertificate, ReadCertificate
from relay.ops.kinds import PERSONS

router: Final = APIRouter(prefix="/persons")
_FORGET: Final = PERSONS.action("forget")
#: How many rows a page shows.
_SHOWN: Final = 100


class _Person(BaseModel):
    subject: Text


class _MaybePerson(BaseModel):
    subject: Text | None = None
    held: bool = False


async def _certificate(ops: Ops, subject: str) -> PersonCertificate:
    found: PersonCertificate = (await ops.queries.ask_async(ReadCertificate(subject=subject))).unwrap()
    return found


@router.get("")
async def person(request: Request, ops: Asked, caller: Reading) -> Response:
    """Show which keys of a person are destroyed, and what is held about the person if it is asked for."""
    asked = read(_MaybePerson, request.query_params.multi_items())
    found, rows, cut = None, list[HeldRow](), True
    if asked.subject is not None:
        found = await _certificate(ops, asked.subject)
        if asked.held:
            check_payloads(caller)
            rows, cut = await held(ops, asked.subject, _SHOWN)
    return page(
        request,
        "persons.html",
        kind=PERSONS,
        subject=asked.subject,
        found=found,
        held=asked.held,
        rows=rows,
        cut=cut,
    )


@router.get("/export")
async def export(request: Request, ops: Asked, caller: Reading) -> Response:
    """Download what is held about a person, as lines of JSON."""
    check_payloads(caller)
    answer = await held_in_lines(ops, read(_Person, request.query_params.multi_items()).subject)
    answer.headers["Content-Disposition"] = 'attachment; filename="person.ndjson"'
    return answer


@router.get("/forget")
async def ask_forget(request: Request, ops: Asked, _: Operating) -> Response:
    """Count the keys of a person, and ask before they are destroyed."""
    subject = read(_Person, [it for it in request.query_params.multi_items() if it[0] != "note"]).subject
    found = await _certificate(ops, subject)
    some = {name: count for name, count in found.left.items() if count}
    where = ", ".join(f"{plural(count, PERSONS.one)} in {name}" for name, count in some.items())
    warnings = [f"{name} does not answer: {why}" for name, why in found.unread.items()]
    return Confirmation(
        button=_FORGET.label,
        question=f"{_FORGET.label} {subject}?",
        about=f"{_FORGET.about} There {'are' if sum(some.values()) != 1 else 'is'} {where or 'no keys'} now.",
        done=_FORGET.past,
        to="/persons/forget",
        back=link("/persons", subject=subject),
        fields=[("subject", subject)],
        harsh=True,
        warnings=warnings,
        needs_note=True,
    ).ask(request)


@router.post("/forget")
async def forget(ops: Asked, caller: Operating, form: Form) -> Response:
    """Destroy the keys, and lead to the certificate, which links the acts in the audit logs."""
    subject = read(_Person, [it for it in form if it[0] != "note"]).subject
    by = Operator(caller.name, note_of(form, needed=True))
    (await ops.do(ForgetPerson(subject=subject, by=by))).unwrap()
    return RedirectResponse(link("/persons", subject=subject), 303)
