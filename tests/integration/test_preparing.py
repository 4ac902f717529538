"""What a development stack makes before it starts its processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from chaos.deployment import NEXT_RELEASE
from relay.adapters.postgres.migrations import status, upgrade
from relay.adapters.postgres.revisions import newest
from relay.devstack import NatsServer, PostgresServer
from relay.devstack.provision import prepare, wipe
from relay.settings import Settings, load_settings


@pytest.fixture
def stack(postgres: PostgresServer, nats_server: NatsServer) -> Any:
    return SimpleNamespace(postgres=postgres, nats=nats_server)


@pytest.fixture
def settings(stack: Any, tmp_path: Path) -> Iterator[Settings]:
    """Of two contexts whose databases do not exist."""
    names = [f"prepared{number}_{uuid4().hex[:8]}" for number in range(2)]
    lines = [f'[contexts.{name}]\ndatabase_url = "{stack.postgres.url_of(name)}"\n' for name in names]
    (tmp_path / "relay.toml").write_text("".join(lines))
    found = load_settings(tmp_path / "relay.toml", environ={"NATS_URL": stack.nats.url})
    yield found
    wipe(stack, found)


def revisions(settings: Settings) -> set[str | None]:
    return {status(context.database).current for context in settings.contexts.values()}


def test_databases_are_made_upgraded_and_left_alone(stack: Any, settings: Settings) -> None:
    for _ in range(2):
        prepare(stack, settings)
        assert revisions(settings) == {newest()}
    for context in settings.contexts.values():
        upgrade(context.database, further=NEXT_RELEASE)
    prepare(stack, settings)
    assert revisions(settings) == {"0902_made_up_too"}
