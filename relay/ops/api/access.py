"""Who calls, and what the caller may do: tokens and roles, and checks that keep foreign web pages out.

A route says by `Allowed` what it needs. All other checks are made for each request, before any route.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.bus.http import json_response
from relay.settings import OpsSettings

_log = logging.getLogger("relay.ops")

#: Paths that need no token: those of probes.
OPEN: Final = frozenset({"/healthz", "/readyz"})
#: The name in the audit log for a caller on this machine without a token.
LOCAL: Final = "local"
#: The content type of a browser's form. Programs send JSON.
FORM: Final = "application/x-www-form-urlencoded"
#: Methods of questions.
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: The header ``Host``: a name or an address, and perhaps a port. Addresses of pages are made from it.
_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
#: The body of an unexpected 500.
FAULT: Final = {
    "error": {"code": "INTERNAL_ERROR", "message": "a fault of the program", "field": None, "hint": None}
}
_HEADERS: Final = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. ``operate``: may act. ``payloads``: may see payloads. Every admitted caller may read."""

    name: str
    operate: bool
    payloads: bool


class NotAdmitted(Exception):
    """A request that is not answered, with its status, and a code that says why."""

    def __init__(self, status: int, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": code, "message": message, "field": None, "hint": hint}}

    def response(self) -> Response:
        """The answer to the request."""
        response = json_response(self.body, self.status)
        if self.status == 503:
            response.headers["Retry-After"] = "1"
        return response


class Doorkeeper:
    """Admits requests. Without users it admits all from this machine that use the machine's own name."""

    def __init__(self, settings: OpsSettings) -> None:
        self._callers: Mapping[bytes, Caller] = {
            _digest(user.token.get_secret_value()): Caller(name, user.role == "operate", user.payloads)
            for name, user in settings.users.items()
        }

    def admit(self, method: str, path: str, headers: Headers, scheme: str = "http") -> Caller | None:
        """Return who calls; None at a path that is open to all. Raises NotAdmitted."""
        self._check_host(headers)
        if path in OPEN:
            return None
        caller = self._caller(headers)
        if method not in READING:
            _check_same_origin(headers, scheme)
        # No route takes another method: the router says which a path has.
        if method == "POST":
            _check_kind(headers, "application/json" if path.startswith("/api/") else FORM)
        return caller

    def _check_host(self, headers: Headers) -> None:
        """Refuse other names: a page in a browser here could make its own name resolve to this machine."""
        found = _HOST.fullmatch(headers.get("host", ""))
        if found is None or (not self._callers and not is_loopback(found[1])):
            raise NotAdmitted(
                403, "FOREIGN_HOST", "this address is not of this machine", "ask 127.0.0.1 or localhost"
            )

    def _caller(self, headers: Headers) -> Caller:
        if not self._callers:
            return Caller(LOCAL, operate=True, payloads=True)
        digest = _digest(_token(headers.get("authorization", "")))
        found = [caller for known, caller in self._callers.items() if hmac.compare_digest(known, digest)]
        if not found:
            raise NotAdmitted(401, "UNAUTHENTICATED", "a token is needed", "Authorization: Bearer …")
        return found[0]


def _check_same_origin(headers: Headers, scheme: str) -> None:
    """Refuse writes that a page of another origin sends: browsers say so in one of these headers.

    Behind a proxy with TLS, that proxy says ``https``, or the browser says that it is the same origin.
    """
    site, origin, host = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "").lower()
    schemes = {"http", "https"} if site == "same-origin" else {headers.get("x-forwarded-proto", scheme)}
    foreign = origin is not None and origin.lower() not in {f"{it}://{host}" for it in schemes}
    if foreign or site not in (None, "same-origin", "none"):
        raise NotAdmitted(
            403, "FOREIGN_ORIGIN", "a page of another origin may not do this", "a proxy sends X-Forwarded-Proto"
        )


def _check_kind(headers: Headers, wanted: str) -> None:
    """Refuse a body of another kind. Any page can send a form, so a form must prove that it is ours."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        code, what = ("NOT_A_FORM", "a form") if wanted == FORM else ("NOT_JSON", "JSON")
        raise NotAdmitted(415, code, f"the body must be {what}", f"Content-Type: {wanted}")
    if wanted == FORM and "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
        why = "nothing says that a page of this server has sent the form"
        raise NotAdmitted(403, "FOREIGN_ORIGIN", why, "use a newer browser")


def _token(authorization: str) -> str:
    """The token of ``Bearer TOKEN``, or of ``Basic`` with the token as the password, as browsers ask for it."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


#: Makes the answer to a request from the answer of an error.
Shown: TypeAlias = Callable[[Request, Response], Response]


class Door:
    """An ASGI application around the API: admits requests, adds headers, and keeps faults to itself.

    ``shown`` makes a page from the answer of an error, if a person has asked for a page.
    """

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper, shown: Shown) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. There are no WebSockets."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def tell(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in _HEADERS.items() if name not in given),
                ]
            await send(message)

        try:
            headers = Headers(scope=scope)
            scope.setdefault("state", {})["caller"] = self._doorkeeper.admit(
                scope["method"], scope["path"], headers, scope["scheme"]
            )
            await self._app(scope, receive, tell)
        except NotAdmitted as refused:
            response = refused.response()
            if refused.status == 401:
                response.headers["WWW-Authenticate"] = 'Basic realm="jetrelay", charset="UTF-8"'
            await self._shown(Request(scope, receive), response)(scope, receive, tell)
        except Exception as error:
            # Its text may hold values of rows. And who calls may put anything into a path.
            _log.error("%s %a failed: %s", scope["method"], scope["path"][:200], type(error).__name__)
            if not begun:
                await self._shown(Request(scope, receive), json_response(FAULT, 500))(scope, receive, tell)


# --- what a route needs ---


def _reading(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _operating(request: Request) -> Caller:
    caller = _reading(request)
    if not caller.operate:
        raise NotAdmitted(
            403, "NOT_ALLOWED", f"{caller.name} may not do this", f'ops.users.{caller.name}: role = "operate"'
        )
    return caller


def check_payloads(caller: Caller) -> None:
    """Raise NotAdmitted if a caller may not see payloads."""
    if not caller.payloads:
        raise NotAdmitted(
            403, "NO_PAYLOADS", f"{caller.name} may not see payloads", f"ops.users.{caller.name}: payloads"
        )


Reading = Annotated[Caller, Depends(_reading)]
Operating = Annotated[Caller, Depends(_operating)]
