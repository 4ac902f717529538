"""What tests of the HTTP API share: the API on real servers, asked as different users."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import jsonschema_rs

from relay.ops.api.app import ContextPools, create_app
from relay.ops.api.common import Ops, OpsLimits
from relay.ops.console.overview import Flow, Patient
from relay.settings import Settings
from tests.unit.ops_support import TOKENS

_LIMITS = OpsLimits()


@dataclass
class Api:
    """Use `serving`."""

    client: httpx2.AsyncClient
    ops: Ops

    async def get(self, path: str, status: int = 200, **how: Any) -> Any:
        return await self._ask("GET", path, status, **how)

    async def post(self, path: str, body: Any, status: int = 200, **how: Any) -> Any:
        return await self._ask("POST", path, status, json=body, **how)

    async def _ask(
        self, method: str, path: str, status: int, *, user: str | None = None, headers: Any = None, **more: Any
    ) -> Any:
        token = {"Authorization": f"Bearer {TOKENS[user]}"} if user else {}
        url = path if path.startswith(("/healthz", "/readyz")) else f"/api/v1{path}"
        answer = await self.client.request(method, url, headers={**token, **(headers or {})}, **more)
        assert answer.status_code == status, answer.text
        return answer.json()


@asynccontextmanager
async def serving(
    settings: Settings,
    pools: ContextPools | None = None,
    *,
    limits: OpsLimits = _LIMITS,
    base_url: str = "http://127.0.0.1:8085",
) -> AsyncIterator[Api]:
    """The API for a configuration, with its connections."""
    app = create_app(settings, pools, limits)
    fastapi = app._app._app._app
    async with (
        fastapi.router.lifespan_context(fastapi),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=base_url) as client,
    ):
        # A page waits for all figures, however slow the machine is.
        fastapi.state.flow, fastapi.state.alarms = Flow(patience_s=30), Patient(30)
        yield Api(client, fastapi.state.ops)


def configured(database: str, nats: str, redis: str, **more: Any) -> Settings:
    """The context `sea`, which has a subscription, on servers; and `quiet`, whose database does not answer."""
    subscription = {"stream": "UP", "filter_subject": "up.>", "handler": "http://127.0.0.1:9/handle"}
    return Settings.model_validate(
        {
            "nats_url": nats,
            "redis_url": redis,
            "contexts": {
                "sea": {"database_url": database, "subscriptions": {"from_upstream": subscription}},
                "quiet": {"database_url": "postgresql://127.0.0.1:1/quiet"},
            },
            **more,
        }
    )


def misfit(document: dict[str, Any], method: str, path: str, status: int, body: Any) -> str | None:
    """Why a body is not what the document declares for this answer; None if it is."""
    declared = document["paths"][path][method.lower()]["responses"].get(str(status))
    if declared is None:
        return f"{status} is not declared: {body}"
    schema = declared["content"]["application/json"]["schema"]
    try:
        jsonschema_rs.validate({**schema, "components": document["components"]}, body)
    except jsonschema_rs.ValidationError as error:
        return str(error)
    return None
