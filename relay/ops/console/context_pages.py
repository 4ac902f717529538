"""The other pages of a context: parked keys, the schedule, the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import AwareDatetime, BaseModel
from starlette.responses import RedirectResponse, Response

from relay.bus import Command
from relay.domain.errors import InvalidRequest, NotParked
from relay.domain.operators import Operator
from relay.domain.schedule import JobView, UnknownJob, how_it_went, pause_refusal
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import Asked, InContext, Ops
from relay.ops.api.contexts import AuditAsked, parked_names
from relay.ops.api.models import Text
from relay.ops.console.confirmation import Confirmation, note_of
from relay.ops.console.forms import Form, checked, read
from relay.ops.console.render import deed_path, link, page
from relay.ops.console.row_actions import used_by
from relay.ops.console.wording import plural
from relay.ops.kinds import AUDIT, JOBS, PARKED, RETENTION
from relay.ops.requests import (
    LISTED,
    TYPED,
    ListParked,
    PauseJob,
    ReadAudit,
    ReadRuns,
    ReadSchedule,
    ReleaseKeys,
    ResumeJob,
    RunJob,
)
from relay.ops.retention import ReadRetention
from relay.ops.selections import keep, look_up

router: Final = APIRouter(prefix="/contexts/{context}")
Verb = Literal["run", "pause", "resume"]
_RELEASE: Final = PARKED.action("release")
_COMMANDS: Final[dict[Verb, type[RunJob | PauseJob | ResumeJob]]] = {
    "run": RunJob,
    "pause": PauseJob,
    "resume": ResumeJob,
}


@router.get("/parked")
async def parked(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """List the keys that ordered subscriptions have parked."""
    found = (await ops.queries.ask_async(ListParked(context=context))).unwrap()
    return page(request, "parked.html", kind=PARKED, context=context, rows=found, most=LISTED)


class _Keys(BaseModel):
    key: Text | None = None
    subscription: Text | None = None
    all: bool = False


def _release(context: str, names: Sequence[str], selection: UUID | None = None) -> Confirmation:
    """The question before keys go on. ``names``: those that were counted."""
    count = f"{_RELEASE.label} {plural(len(names), PARKED.one)}"
    base = f"/contexts/{context}/parked"
    return Confirmation(
        button=count,
        question=f"{count}: {names[0]}?" if len(names) == 1 else f"{count}?",
        about=_RELEASE.about,
        done=_RELEASE.past,
        to=f"{base}/release",
        back=base,
        fields=[("selection", str(selection))],
        context=context,
    )


@router.get("/parked/release")
async def ask_release(request: Request, ops: Asked, _: Operating, context: InContext) -> Response:
    """Count the keys, keep which they are, and ask before they go on. Changes none of them."""
    asked = read(_Keys, [it for it in request.query_params.multi_items() if it[0] != "note"])
    if (asked.key is None) != asked.all:
        raise InvalidRequest("say which: a key, or all")
    keys = None if asked.key is None else [asked.key]
    names = await parked_names(ops, context, keys, asked.subscription)
    if not names:
        raise NotParked("is not parked any more" if keys else "no key is parked any more", hint="look at the list")
    return _release(context, names, await keep(ops, context, PARKED, _RELEASE, names, None)).ask(request)


@router.post("/parked/release")
async def release(request: Request, ops: Asked, caller: Operating, context: InContext, form: Form) -> Response:
    """Let the keys go on that were counted, once, and lead to the page of the deed."""
    if (deed := await used_by(ops, context, form)) is not None:
        return RedirectResponse(deed_path(context, deed), 303)
    selection = read(_CountedInForm, [it for it in form if it[0] != "note"]).selection
    names = (await look_up(ops, context, PARKED, _RELEASE, selection)).ids or ()
    by = Operator(caller.name, note_of(form), selection=selection)
    result = await ops.do(ReleaseKeys(context=context, counted=names, by=by))
    outcome = result.unwrap()
    if outcome.deed is None:
        return _release(context, names).result_page(request, result)
    return RedirectResponse(deed_path(context, outcome.deed), 303)


class _CountedInForm(BaseModel):
    selection: UUID


# --- the schedule ---


@router.get("/schedule")
async def schedule(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """Show what is scheduled, when it ran last and runs next, and which scheduler leads."""
    found = (await ops.queries.ask_async(ReadSchedule(context=context))).unwrap()
    pausable = {job.name for job in found.jobs if pause_refusal(job.schedule) is None}
    return page(request, "schedule.html", kind=JOBS, context=context, found=found, pausable=pausable, most=LISTED)


class _Job(BaseModel):
    name: Text


class _RunsPage(_Job):
    """``asked``: when a run was asked for, whose outcome is to be told."""

    asked: AwareDatetime | None = None


async def _scheduled(ops: Ops, context: str, name: str) -> JobView:
    found = (await ops.queries.ask_async(ReadSchedule(context=context, limit=TYPED))).unwrap()
    job = next((it for it in found.jobs if it.name == name), None)
    if job is None:
        raise UnknownJob(f"{context} has no job {name[:100]!r}", hint="see the page of its schedule")
    return job


@router.get("/schedule/runs")
async def runs(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """Show the last runs of a job, and how the one went that was asked for."""
    asked = checked(_RunsPage, dict(request.query_params))
    job = await _scheduled(ops, context, asked.name)
    last = (await ops.queries.ask_async(ReadRuns(context=context, name=job.name))).unwrap()
    ran, went = None, None
    if asked.asked is not None:
        answering = ReadRuns(context=context, name=job.name, asked=asked.asked)
        ran = next(iter((await ops.queries.ask_async(answering)).unwrap()), None)
        went = how_it_went(job, ran, asked.asked)
    return page(
        request,
        "runs.html",
        context=context,
        job=job,
        runs=last,
        asked=asked.asked,
        ran=ran,
        went=went,
    )


def _confirmation(context: str, verb: Verb, name: str, selection: UUID) -> Confirmation:
    action, base = JOBS.action(verb), f"/contexts/{context}/schedule"
    return Confirmation(
        button=action.label,
        question=f"{action.label}: {name}?",
        about=action.about,
        done=action.done,
        to=f"{base}/{verb}",
        back=base,
        fields=[("selection", str(selection))],
        context=context,
    )


@router.get("/schedule/{verb}")
async def ask_job(request: Request, ops: Asked, _: Operating, context: InContext, verb: Verb) -> Response:
    """Ask before a job is run, paused or goes on, and keep which it is."""
    name = read(_Job, [it for it in request.query_params.multi_items() if it[0] != "note"]).name
    await _scheduled(ops, context, name)
    selection = await keep(ops, context, JOBS, JOBS.action(verb), [name], None)
    return _confirmation(context, verb, name, selection).ask(request)


@router.post("/schedule/{verb}")
async def do_job(
    request: Request, ops: Asked, caller: Operating, context: InContext, verb: Verb, form: Form
) -> Response:
    """Run a job now, pause it, or let it go on, once; and lead to the page of its runs, or of the deed."""
    if (deed := await used_by(ops, context, form)) is not None:
        return RedirectResponse(deed_path(context, deed), 303)
    selection = read(_CountedInForm, [it for it in form if it[0] != "note"]).selection
    [name] = (await look_up(ops, context, JOBS, JOBS.action(verb), selection)).ids or ()
    by = Operator(caller.name, note_of(form), selection=selection)
    command: Command[Any] = _COMMANDS[verb](context=context, name=name, by=by)
    answer = (await ops.do(command)).unwrap()
    if verb == "run":
        where = link(f"/contexts/{context}/schedule/runs", name=name, asked=answer.isoformat())
        return RedirectResponse(where, 303)
    if (deed := await used_by(ops, context, form)) is not None:
        return RedirectResponse(deed_path(context, deed), 303)
    return _confirmation(context, verb, name, selection).result_page(request)  # it was so already


# --- the audit log ---


@router.get("/audit")
async def audit(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """List who did what, when and why, the newest first."""
    asked = read(AuditAsked, request.query_params.multi_items())
    found = (await ops.queries.ask_async(ReadAudit(context=context, **asked.model_dump()))).unwrap()
    following = found[-1]["id"] if len(found) == asked.limit else None
    return page(request, "audit.html", kind=AUDIT, context=context, rows=found, following=following)


@router.get("/retention")
async def retention(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """Show what is kept how long, and what goes next."""
    found = (await ops.queries.ask_async(ReadRetention(context=context))).unwrap()
    return page(request, "retention.html", kind=RETENTION, context=context, rows=[it.row() for it in found])
