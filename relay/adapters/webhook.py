"""Alerts by HTTP: one POST of JSON to an address of the configuration."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

import aiohttp

from relay.adapters.http import HttpAccess, open_session
from relay.domain.errors import AlertRefused


class Webhook:
    """Follows no redirect and reads only the status of an answer. Errors never name the URL: it may be a secret.

    An alert that is sent again has the same ``webhook-id``, unless its body has changed.
    """

    def __init__(
        self, url: str, access: HttpAccess | None = None, *, timeout: timedelta = timedelta(seconds=3)
    ) -> None:
        self._url = url
        self._access = access or HttpAccess()
        self._timeout = timeout.total_seconds()

    async def send(self, body: bytes) -> None:
        """Deliver one alert. Raises AlertRefused unless the answer is a 2xx in time."""
        try:
            async with asyncio.timeout(self._timeout):
                status = await self._post(body)
        except TimeoutError:
            raise AlertRefused(f"the webhook did not answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise AlertRefused(f"the webhook cannot be reached: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise AlertRefused(f"the webhook answered {status}")

    async def _post(self, body: bytes) -> int:
        identity = f"alert_{hashlib.sha256(body).hexdigest()[:32]}"
        headers = {"content-type": "application/json", **self._access.headers(identity, body)}
        async with (
            open_session(tls=self._access.tls) as session,
            session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status
