"""Actions that are not on rows in states: one page asks before the action, another shows its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from starlette.responses import Response

from relay.bus import Failed, Result
from relay.bus.http import status_of
from relay.domain.errors import InvalidRequest
from relay.domain.operators import Outcome
from relay.ops.console.forms import Pairs
from relay.ops.console.render import page

_MAX_NOTE: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The question before an action, and the words of its result.

    ``button``: the text of the button. ``done``: the text after the action. ``to``: the address of the form;
    ``fields``: values that it sends again. ``back``: the page before. ``which``: the filter, if there is one.
    ``warnings``: what may go wrong. ``audited``: whether the audit log records it. ``needs_note``: not without a
    reason. ``changed``: how many rows it has changed, if its result does not name them.
    """

    button: str
    question: str
    about: str
    done: str
    to: str
    back: str
    fields: Sequence[tuple[str, str]] = ()
    context: str | None = None
    harsh: bool = False
    which: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    audited: bool = True
    needs_note: bool = False
    changed: int = 1

    def ask(self, request: Request) -> Response:
        """The page that asks."""
        return page(request, "confirmation.html", context=self.context, confirmation=self)

    def result_page(self, request: Request, result: Result[Outcome] | None = None) -> Response:
        """The page that shows the result. Raises the error if the action failed as a whole."""
        if isinstance(result, Failed):
            raise result.error
        done = result.value.done if result else ()
        refused = result.value.refused if result else ()
        reasons = Counter((error.code, error.message, error.hint) for _, error in refused).most_common(5)
        status = status_of(refused[0][1]) if refused and not done else 200
        return page(
            request,
            "confirmation-done.html",
            status,
            context=self.context,
            confirmation=self,
            many=result is not None,
            done=done,
            refused=refused,
            reasons=reasons,
        )


def note_of(form: Pairs, *, needed: bool = False) -> str | None:
    """The note of a form. Raises InvalidRequest if it is too long, or is ``needed`` and missing."""
    note = dict(form).get("note", "").strip()
    if len(note) > _MAX_NOTE or "\0" in note:
        raise InvalidRequest(f"at most {_MAX_NOTE} characters", field="note")
    if needed and not note:
        raise InvalidRequest("is needed: why, for the audit log", field="note")
    return note or None
