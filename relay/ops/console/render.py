"""Makes pages from templates, and turns JSON answers into pages for people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from relay.ops.api.answers import MadeApart
from relay.ops.console import wording
from relay.ops.find import words
from relay.ops.kinds import KINDS

_HERE: Final = Path(__file__).parent
_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
#: `same-origin`: with `no-referrer` browsers would hide from us which page a form comes from.
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",
}
#: The pages of a context, and those of the whole system besides the overview.
MENU: Final = (
    ("events", "Events"),
    ("inbox", "Inbox"),
    ("dead-letters", "Dead letters"),
    ("parked", "Parked keys"),
    ("replays", "Replays"),
    ("tasks", "Tasks"),
    ("history", "History"),
    ("schedule", "Schedule"),
    ("controls", "Pauses and limits"),
    ("archive", "Archive"),
    ("retention", "Retention"),
    ("audit", "Audit log"),
)
#: Lists over all contexts: pages, and lines of the search.
EVERYWHERE: Final = (
    ("/find?q=kind:dead-letters+status:open", "Dead letters"),
    ("/find?q=kind:inbox+status:failing", "Failing"),
    ("/find?q=kind:inbox+status:running", "In flight"),
    ("/all/parked", "Parked keys"),
    ("/all/schedule", "Schedule"),
    ("/all/audit", "Audit log"),
)
SYSTEM: Final = (
    ("/streams", "Streams"),
    ("/queues", "Queues"),
    ("/fleet", "Fleet"),
    ("/persons", "Personal data"),
)
_THEMES: Final = ("light", "dark")
_AGE: Final = 31_536_000
#: How many parts the path of a list has behind /contexts.
_OF_LIST: Final = 2
#: Fields of a query that name a place in one list.
_PLACE: Final = ("before", "offset", "back")


class Static(StaticFiles):
    """Scripts and styles. Their addresses name their content, so browsers keep them."""

    def __init__(self) -> None:
        super().__init__(directory=_HERE / "static")

    def file_response(self, *args: Any, **more: Any) -> Response:
        """The file. Browsers may keep it."""
        response = super().file_response(*args, **more)
        response.headers["Cache-Control"] = f"max-age={_AGE}, immutable"
        return response


@cache
def _asset(name: str) -> str:
    """The address of a file, by its content."""
    digest = hashlib.sha256((_HERE / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?{digest}"


def link(path: str, **query: Any) -> str:
    """An address with a query. What is None or empty is left out; a list is repeated."""
    wanted = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(wanted, doseq=True)}" if wanted else path


def deed_path(context: str, id: int) -> str:
    """The address of the page of an act."""
    return f"/contexts/{quote(context)}/audit/{id}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("relay.ops.console"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(wording.filters())
    environment.filters["combine"] = lambda values, **more: {**values, **more}
    environment.globals.update(
        link=link,
        asset=_asset,
        params_but=_but,
        elsewhere=_elsewhere,
        menu=MENU,
        words=words,
        kinds=KINDS,
        system=SYSTEM,
        everywhere=EVERYWHERE,
        CLASSES=wording.CLASSES,
    )
    return environment


def page(request: Request, template: str | Sequence[str], status: int = 200, **values: Any) -> Response:
    """A page from a template, or from the first of several that exists.

    ``context``, if it is among the values, is the context that the page is about.
    """
    state = request.scope.get("state", {})
    app = request.scope.get("app")  # none yet, where the door refuses
    theme = request.cookies.get("theme")
    common = {
        "request": request,
        "here": request.scope["path"],
        "params": parameters(request.query_params.multi_items()),
        "user": state.get("caller"),
        "contexts": list(app.state.ops.settings.contexts) if app else [],
        "theme": theme if theme in _THEMES else None,
        "context": None,
        "now": datetime.now(UTC),
        "line": None,
    }
    found = _environment().select_template([template] if isinstance(template, str) else template)
    return MadeApart(lambda: found.render(common | values).encode(), status, _HEADERS, "text/html")


def parameters(items: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The values of a query by name, without those that are empty."""
    found: dict[str, list[str]] = {}
    for name, value in items:
        if value:
            found.setdefault(name, []).append(value)
    return found


def _but(params: Mapping[str, list[str]], *names: str) -> dict[str, list[str]]:
    return {name: values for name, values in params.items() if name not in names}


def _elsewhere(here: str, context: str, params: Mapping[str, list[str]]) -> str:
    """The same list for another context, with its filter; or the events of that context.

    From the page of a row it leads to the list from which the row was opened: ``back``.
    """
    _, _, *rest = here.split("/")
    if not (here.startswith("/contexts/") and rest[1:2] and rest[1] in dict(MENU)):
        return f"/contexts/{context}/{MENU[0][0]}"
    asked = params if len(rest) == _OF_LIST else parameters(parse_qsl((params.get("back") or [""])[-1]))
    return link(f"/contexts/{context}/{rest[1]}", **_but(asked, *_PLACE))


# --- errors ---

_TITLES: Final = {
    401: "A token is needed",
    403: "Not allowed",
    404: "There is no such thing",
    409: "Not in this state",
    413: "Too large",
    415: "Not understood",
    422: "Not understood",
    503: "A server does not answer",
}


def is_page(path: str) -> bool:
    """Whether a path is for people: every path is, except those of the API and the probes."""
    return not path.startswith("/api/") and path not in ("/api", "/healthz", "/readyz")


def as_page(request: Request, answer: Response) -> Response:
    """The answer of an error as a page, if a page was asked for."""
    if not is_page(request.scope["path"]):
        return answer
    found: Mapping[str, Any] = json.loads(bytes(answer.body))["error"]
    title = _TITLES.get(answer.status_code, "Something went wrong")
    shown = page(request, "error.html", answer.status_code, title=title, error=found, code=answer.status_code)
    for name in ("WWW-Authenticate", "Retry-After", "Allow"):
        if name in answer.headers:
            shown.headers[name] = answer.headers[name]
    return shown
