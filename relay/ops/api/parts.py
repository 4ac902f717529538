"""Lists that are no pages: a part of each is an answer, and a header says that there is more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.ops.api.answers import in_json
from relay.ops.api.lines import in_lines
from relay.ops.requests import LISTED


class PartAsked(BaseModel):
    """``offset``: how many entries lie before the part. The header Link, with rel="next", has the next one."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    limit: Annotated[int, Field(ge=1, le=LISTED)] = LISTED
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0

    def one_more(self) -> dict[str, int]:
        """What to ask a query for: one entry more than is shown says that there are more."""
        return {"limit": self.limit + 1, "offset": self.offset}

    async def lines(self, places: asyncio.Semaphore, part: Callable[[PartAsked], Any]) -> Response:
        """All parts from this one on, as lines; only this one if a ``limit`` was asked for."""
        one = "limit" in self.model_fields_set

        async def page(offset: int | None) -> tuple[Sequence[Any], int | None]:
            at = self.offset if offset is None else offset
            found = await part(PartAsked(limit=self.limit, offset=at))
            more = len(found) > self.limit and not one
            return found[: self.limit], at + self.limit if more else None

        return await in_lines(places, page)

    def answer(self, found: Sequence[Any], shown: Callable[[Sequence[Any]], Any] = list) -> Response:
        """The response with the part of what was found. ``shown`` makes its value."""
        response = in_json(shown(found[: self.limit]))
        if len(found) > self.limit:
            following = f"limit={self.limit}&offset={self.offset + self.limit}"
            response.headers["Link"] = f'<?{following}>; rel="next"'
        return response
