"""The archive of a context: list batches, verify files, restore rows, replay events. The limits are the API's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from relay.bus.http import status_of
from relay.commands.archive import FileCheck
from relay.domain.archive import ArchiveDamaged, ArchiveKind, RowFilter
from relay.domain.errors import InvalidKey, InvalidRequest, RelayError, TooMany, of_context
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.archive import ArchivedFilter, Files, RowsChosen, chosen_rows, counted_rows, keep_rows
from relay.ops.api.common import Asked, InContext, Ops
from relay.ops.archive import (
    BindArchived,
    CountArchived,
    ReplayArchived,
    RestoreArchived,
    VerifyArchive,
    forgetful,
)
from relay.ops.console.confirmation import Confirmation, note_of
from relay.ops.console.forms import Form, Pairs, checked, read
from relay.ops.console.render import deed_path, link, page
from relay.ops.console.row_actions import used_by
from relay.ops.console.wording import plural
from relay.ops.kinds import ARCHIVED
from relay.ops.requests import LISTED, ListBatches

router: Final = APIRouter(prefix="/contexts/{context}/archive")
Verb = Literal["restore", "replay"]
#: More ids would not fit into an address.
_MAX_IDS: Final = 100
NOUNS: Final = {ArchiveKind.OUTBOX: "event", ArchiveKind.INBOX: "message", ArchiveKind.TASKS: "task"}


@router.get("")
async def listed(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """List the batches in the archive."""
    found = (await ops.queries.ask_async(ListBatches(context=context, newest=True))).unwrap()
    on = ops.settings.contexts[context].archive.place is not None
    return page(request, "archive.html", kind=ARCHIVED, context=context, batches=found, on=on, most=LISTED)


# --- verify files ---


def _files(pairs: Pairs) -> Files:
    """The files that a form names. The form of a list sends them as ids."""
    return read(Files, [("files" if name == "ids" else name, text) for name, text in pairs])


@router.get("/verify")
async def ask_verify(request: Request, ops: Asked, _: Operating, context: InContext) -> Response:
    """Ask which files to read again: the ticked ones, or the files of a table and a time."""
    of_context(ops.settings.contexts, context)
    files = _files(request.query_params.multi_items()).files
    return page(request, "archive-verify.html", context=context, files=files, kinds=ArchiveKind)


@router.post("/verify")
async def verify(request: Request, ops: Asked, _: Operating, context: InContext, form: Form) -> Response:
    """Read files again, and say which are missing or damaged. Changes nothing, so it is not in the audit log."""
    try:
        asked = _files(form)
        query = VerifyArchive(context=context, **dict(asked) | {"limit": ops.limits.files})
        found: Sequence[FileCheck] = (await ops.queries.ask_async(query)).unwrap()
    except TooMany as error:
        command = shlex.join(["relay", "archive", "verify", "--context", context])
        raise TooMany(error.message, hint=f"verify those of a table and time, or run: {command}") from None
    doubtful = [it for it in found if it.error or it.left_over]
    sound = len(found) - len(doubtful)
    return page(request, "archive-verified.html", context=context, sound=sound, doubtful=doubtful)


# --- restore rows, replay events ---


class _Rows(ArchivedFilter):  # type: ignore[misc] # made at run time
    """The rows that a form names: ``ids``, one a line; a filter; or all."""

    kind: ArchiveKind = ArchiveKind.OUTBOX
    ids: Annotated[str, Field(max_length=_MAX_IDS * 300)] = ""
    all: bool = False


@dataclass(frozen=True, slots=True)
class _ArchivedChosen:
    """The rows that a restore or a replay is for. ``fields``: the values that the form sends again."""

    context: str
    verb: Verb
    kind: ArchiveKind
    ids: Sequence[str]
    wanted: RowFilter
    fields: Sequence[tuple[str, str]]

    async def count(self, ops: Ops) -> tuple[int, RowFilter]:
        """How many rows it is for, and the filter that finds these and no later ones.

        Raises TooMany, and what `ArchiveHandlers` raises.
        """
        which: Any = {"context": self.context, "kind": self.kind}
        wanted = (await ops.queries.ask_async(BindArchived(**which, wanted=self.wanted))).unwrap()
        try:
            count = (await ops.queries.ask_async(CountArchived(**which, wanted=wanted))).unwrap()
        except TooMany as error:
            raise self.too_many(error.message) from None
        if count > ops.limits.rows:
            raise self.too_many(f"{count:,} {NOUNS[self.kind]}s match and one form may change {ops.limits.rows:,}")
        return count, wanted

    def too_many(self, message: str) -> TooMany:
        """The error that names a command without these limits."""
        options = [
            (f"--{name.removesuffix('_id')}", text) for name, text in self.fields if name not in ("ids", "all")
        ]
        words = [word for option in options for word in option]
        words += ["--all"] if ("all", "1") in self.fields else []
        words = ["relay", "archive", self.verb, "--context", self.context, *words]
        command = shlex.join([*words, *(["--", *self.ids] if self.ids else ())])
        return TooMany(message, hint=f"narrow it, for example by time, or run: {command}")

    def confirmation(self, count: int, selection: UUID, warnings: Sequence[str] = ()) -> Confirmation:
        """The page that asks before the action."""
        button = f"{ARCHIVED.action(self.verb).label} {plural(count, NOUNS[self.kind])}"
        base = f"/contexts/{self.context}/archive"
        return Confirmation(
            button=button,
            question=f"{button} of the archive?",
            about=ARCHIVED.action(self.verb).about,
            done="",
            to=f"{base}/{self.verb}",
            back=base,
            fields=[("selection", str(selection))],
            context=self.context,
            which=[(name, _brief(text)) for name, text in self.fields if name not in ("kind", "all")],
            warnings=warnings,
        )


def _brief(text: str) -> str:
    """The first of many ids."""
    first, *others = text.splitlines()
    return f"{first} and {len(others)} more" if others else first


def _choose(context: str, verb: Verb, pairs: Pairs) -> _ArchivedChosen:
    """Read what a form says. Raises InvalidRequest and InvalidKey, which name the field."""
    asked = read(_Rows, [it for it in pairs if it[0] != "note"])
    if verb == "replay" and asked.kind is not ArchiveKind.OUTBOX:
        raise InvalidRequest("only events are published", field="kind")
    ids = list(dict.fromkeys(it.strip() for it in asked.ids.splitlines() if it.strip()))
    if len(ids) > _MAX_IDS:
        raise InvalidRequest(f"at most {_MAX_IDS}", field="ids", hint=f"relay archive {verb} takes more")
    found = {
        name: it for name in (one.name for one in ARCHIVED.filters) if (it := getattr(asked, name)) is not None
    }
    which = {"ids": ids or None, "filter": found or None, "all": asked.all, "kind": asked.kind}
    wanted = chosen_rows(checked(RowsChosen, which), asked.kind)
    fields = [(name, it if isinstance(it, str) else it.isoformat()) for name, it in found.items()]
    fields += [("kind", asked.kind.value)] if verb == "restore" else []
    fields += [("ids", "\n".join(ids))] if ids else []
    fields += [("all", "1")] if asked.all else []
    return _ArchivedChosen(context, verb, asked.kind, ids, wanted, fields)


@router.get("/{verb}")
async def ask(request: Request, ops: Asked, _: Operating, context: InContext, verb: Verb) -> Response:
    """Ask which rows. If the form already names them, count them and ask for a note. Changes nothing."""
    of_context(ops.settings.contexts, context)
    if not (pairs := request.query_params.multi_items()):
        return _form(request, context, verb)
    try:
        chosen = _choose(context, verb, pairs)
        count, wanted = await chosen.count(ops)
    except (InvalidRequest, InvalidKey, TooMany, ArchiveDamaged) as error:
        return _form(request, context, verb, error)
    if not count:
        return _form(request, context, verb, nothing=f"No {NOUNS[chosen.kind]} of the archive fits.")
    warnings = forgetful(ops.settings, context) if verb == "replay" else ()
    selection = await keep_rows(ops, context, ARCHIVED.action(verb), chosen.kind, wanted)
    return chosen.confirmation(count, selection, warnings).ask(request)


def _form(
    request: Request, context: str, verb: Verb, wrong: RelayError | None = None, nothing: str = ""
) -> Response:
    """The form that names rows, with the values that were sent and the reason why they were refused."""
    return page(
        request,
        "archive-ask.html",
        status_of(wrong) if wrong else 200,
        context=context,
        verb=verb,
        action=ARCHIVED.action(verb),
        kind=ARCHIVED,
        nouns=NOUNS,
        wrong=wrong,
        nothing=nothing,
    )


class _Counted(BaseModel):
    """What the form of a question sends."""

    selection: UUID


class _Changed(BaseModel):
    """What an act has changed."""

    kind: ArchiveKind = ArchiveKind.OUTBOX
    count: Annotated[int, Field(ge=0, le=10**9)] = 0


@router.post("/{verb}")
async def act(ops: Asked, caller: Operating, context: InContext, verb: Verb, form: Form) -> Response:
    """Do it to the rows that were counted, once, and lead to the result."""
    if (deed := await used_by(ops, context, form)) is not None:
        return RedirectResponse(deed_path(context, deed), 303)
    selection = read(_Counted, [it for it in form if it[0] != "note"]).selection
    kind, wanted = await counted_rows(ops, context, ARCHIVED.action(verb), selection)
    by = Operator(caller.name, note_of(form), selection=selection)
    named: dict[str, Any] = {"context": context, "wanted": wanted, "limit": None, "by": by}
    command = ReplayArchived(**named) if verb == "replay" else RestoreArchived(kind=kind, **named)
    count = (await ops.do(command)).unwrap()
    return RedirectResponse(
        link(f"/contexts/{quote(context)}/archive/{verb}/done", kind=kind.value, count=count), 303
    )


@router.get("/{verb}/done")
async def done(request: Request, ops: Asked, _: Operating, context: InContext, verb: Verb) -> Response:
    """Say what an act has changed. Loaded again, it does nothing. The audit log names the files."""
    of_context(ops.settings.contexts, context)
    changed = read(_Changed, request.query_params.multi_items())
    rows, action = plural(changed.count, NOUNS[changed.kind]), ARCHIVED.action(verb)
    confirmation = Confirmation(
        button=f"{action.label} {rows}",
        question="",
        about=action.about,
        done=_result_text(verb, rows, changed.count),
        to="",
        back=f"/contexts/{context}/archive",
        context=context,
        audited=changed.count > 0,
        changed=changed.count,
    )
    return confirmation.result_page(request)


def _result_text(verb: Verb, rows: str, count: int) -> str:
    if verb == "replay":
        return (
            f"{rows} will be published once more." if count else "None waits: each was replayed since, or is sent."
        )
    return (
        f"{rows} came back. What was in the table stays as it was." if count else "All are in their table already."
    )
