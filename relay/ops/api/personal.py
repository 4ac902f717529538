"""Encryption over HTTP."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.bus.http import json_response
from relay.ops.api.access import Operating
from relay.ops.api.common import PROBLEMS, Asked, InContext
from relay.ops.api.models import Text
from relay.ops.personal import EncryptPayload

router: Final = APIRouter(prefix="/contexts/{context}", tags=["contexts"], responses=PROBLEMS)


class ToEncrypt(BaseModel):
    """A payload of an event of this type."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    event_type: Text
    payload: dict[str, Any] = Field(repr=False)


class EncryptedOut(BaseModel):
    """The payload, with its personal fields encrypted."""

    payload: dict[str, Any]


@router.post(
    "/encrypt",
    response_model=EncryptedOut,
    name="encrypt_payload",
    description="Encrypt the personal fields of a payload, as relay.toml declares them for its type. A new key of "
    "the person is kept, and no plain text.",
)
async def _encrypt_payload(ops: Asked, _: Operating, context: InContext, asked: ToEncrypt) -> Response:
    command = EncryptPayload(context=context, event_type=asked.event_type, payload=asked.payload)
    return json_response({"payload": (await ops.do(command)).unwrap()})
