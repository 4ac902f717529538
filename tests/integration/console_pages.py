"""What tests of the console share: pages and forms, asked as a browser asks them."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import httpx2

from tests.unit.ops_support import TOKENS

ORIGIN = "http://127.0.0.1:8085"
#: What a browser says of a form of our own page.
OURS = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}


@dataclass(frozen=True)
class Page:
    """A page as a browser gets it. ``text``: what is to be read, with single spaces."""

    status: int
    headers: httpx2.Headers
    html: str

    @property
    def text(self) -> str:
        reader = _Reader()
        reader.feed(self.html)
        return re.sub(r"\s+", " ", " ".join(reader.texts)).strip()

    @property
    def tags(self) -> list[tuple[str, dict[str, str | None]]]:
        reader = _Reader()
        reader.feed(self.html)
        return reader.tags

    @property
    def links(self) -> list[str]:
        return [href for _, found in self.tags if (href := found.get("href"))]

    def data(self, name: str) -> str | None:
        """What a page says to programs: the first attribute ``data-NAME``."""
        return next((found[f"data-{name}"] for _, found in self.tags if f"data-{name}" in found), None)

    @property
    def outcome(self) -> tuple[str | None, str | None]:
        """How many rows an action has changed, and how many it was refused."""
        return self.data("done"), self.data("refused")

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The hidden fields of forms, as a browser sends them back."""
        hidden = [found for tag, found in self.tags if tag == "input" and found.get("type") == "hidden"]
        return [(found["name"] or "", found["value"] or "") for found in hidden]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def basic(user: str | None) -> dict[str, str]:
    """What a browser sends for somebody who has given a token."""
    if user is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{TOKENS[user]}'.encode()).decode()}"}


@dataclass
class Browser:
    """Asks the console. Use `Api.client` of `ops_api.serving`."""

    client: httpx2.AsyncClient
    user: str | None = None

    async def open(self, path: str, status: int = 200, **query: Any) -> Page:
        headers = {"Accept": "text/html", **basic(self.user)}
        answer = await self.client.get(path, params=query or None, headers=headers)
        assert answer.status_code == status, answer.text
        return Page(answer.status_code, answer.headers, answer.text)

    async def send(
        self,
        path: str,
        fields: Sequence[tuple[str, str]],
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> Page:
        """Send a form; the answer is the page to which it leads."""
        told = OURS if headers is None else headers
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
        answer = await self.client.post(
            path, content=urlencode(fields), headers={**kind, **told, **basic(self.user)}
        )
        if answer.status_code == 303 and status != 303:
            return await self.open(answer.headers["location"], status)
        assert answer.status_code == status, answer.text
        return Page(answer.status_code, answer.headers, answer.text)
