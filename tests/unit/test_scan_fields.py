"""The fields of `relay forget --scan` may be those that an event declares personal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from relay import event
from relay.cli.redaction import OPTIONS, wanted
from relay.domain.errors import InvalidRequest


@event(
    "scan_order_placed",
    aggregate_type="order",
    aggregate_id="order_id",
    subject="customer_id",
    personal=["email", "address.*"],
)
class ScanOrderPlaced(BaseModel):
    """An event about a person."""

    order_id: str
    customer_id: str
    email: str | None
    address: dict[str, str | None]


def asked(**more: Any) -> dict[str, Any]:
    defaults = {name: default for name, (_, default) in OPTIONS.items()}
    return {**defaults, "scan": True, "value": ["ann@example.org"], **more}


def test_the_fields_and_the_type_are_those_of_the_class() -> None:
    found = wanted(asked(event=f"{__name__}:ScanOrderPlaced"), None)
    assert found is not None
    assert (found.type, found.paths) == ("scan_order_placed", ("customer_id", "email", "address.*"))


def test_or_those_that_the_settings_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = '{subject = "customer_id", fields = ["email"]}'
    (tmp_path / "relay.toml").write_text(
        f'[contexts.shop]\ndatabase_url = "postgresql://h/d"\n[contexts.shop.personal]\norder_paid = {declared}\n'
    )
    monkeypatch.setenv("RELAY_CONFIG", str(tmp_path / "relay.toml"))
    found = wanted(asked(event="order_paid"), None)
    assert found is not None
    assert (found.type, found.paths) == ("order_paid", ("customer_id", "email"))
    with pytest.raises(InvalidRequest, match="declares no personal fields"):
        wanted(asked(event="order_lost"), None)


@pytest.mark.parametrize(
    "more",
    [
        {"event": f"{__name__}:BaseModel"},
        {"event": f"{__name__}:none"},
        {"event": f"{__name__}:ScanOrderPlaced", "path": ["email"]},
        {"event": f"{__name__}:ScanOrderPlaced", "type": "order_paid"},
        {"event": f"{__name__}:ScanOrderPlaced", "scan": False, "value": None},
    ],
)
def test_what_names_no_fields_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        wanted(asked(**more), None)
