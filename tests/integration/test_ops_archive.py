"""The archive over HTTP: files are verified, rows restored, events replayed; and what is too much is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay.adapters.postgres.pool import connected
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.errors import TooMany
from relay.ops.archive import ArchiveHandlers, CountArchived
from relay.settings import Settings
from tests.integration.archiving import ANN, Archive, archived
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        await archive.events(5)
        await archive.command(rows=2).run(ANN)
        yield archive


@pytest.fixture
def settings(archive: Archive, nats_server: NatsServer, valkey: ValkeyServer) -> Settings:
    """With the context of the archive, under the name that its files have."""
    context = {"database_url": archive.url, "archive": {"after": "90d", "directory": str(archive.root)}}
    plain = configured(archive.url, nats_server.url, valkey.url).model_dump(include={"nats_url", "redis_url"})
    servers = {name: found.get_secret_value() for name, found in plain.items()}
    return Settings.model_validate({**servers, "contexts": {archive.relay.context: context}})


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with serving(settings) as api:
        yield api


@pytest.fixture
def path(archive: Archive) -> str:
    return f"/contexts/{archive.relay.context}/archive"


async def test_files_are_verified_up_to_a_limit(api: Api, archive: Archive, path: str) -> None:
    assert await api.post(f"{path}/verify", {}) == {"sound": 3, "findings": []}
    refused = await api.post(f"{path}/verify", {"limit": 2}, 409)
    assert (refused["error"]["code"], refused["error"]["hint"]) == ("TOO_MANY", "relay archive verify")
    [first, *_] = sorted(archive.root.rglob("*.gz"))
    name = first.relative_to(archive.root).as_posix()
    assert await api.post(f"{path}/verify", {"files": [name], "limit": 1}) == {"sound": 1, "findings": []}
    for none in ({"kind": "inbox"}, {"until": "2020-01-01T00:00Z"}, {"since": "2999-01-01T00:00Z"}):
        assert await api.post(f"{path}/verify", none) == {"sound": 0, "findings": []}
    unknown = await api.post(f"{path}/verify", {"files": [name, "none"]}, 422)
    assert unknown["error"]["field"] == "files"
    first.unlink()
    found = await api.post(f"{path}/verify", {})
    assert (found["sound"], [it["error"].rpartition(" ")[2] for it in found["findings"]]) == (2, ["missing"])


async def test_rows_come_back_by_filter_by_id_and_not_beyond_the_limit(
    api: Api, archive: Archive, path: str
) -> None:
    [id, *_] = archive.in_archive()
    assert archive.in_table() == []
    counted = await api.post(f"{path}/restore", {"all": True, "dry_run": True})
    assert (counted["count"], counted["dry_run"], archive.in_table()) == (5, True, [])
    assert (await api.post(f"{path}/restore", {"all": True, "limit": 4}, 409))["error"]["code"] == "TOO_MANY"
    assert archive.in_table() == []
    assert (await api.post(f"{path}/restore", {"ids": [str(id)], "note": "asked for"}))["count"] == 1
    assert archive.in_table() == [id]
    everything = {"filter": {"type": "vibe_created", "subject": "*.event.>"}, "kind": "outbox"}
    assert (await api.post(f"{path}/restore", everything))["count"] == 4
    assert (await api.post(f"{path}/restore", {"all": True, "kind": "tasks"}))["count"] == 0
    assert [it["actor"] for it in archive.audit() if it["action"] == "archive.restore"] == ["local"] * 4
    refused = await api.post(f"{path}/restore", {"filter": {"subject": "a..b"}}, 422)
    assert refused["error"]["field"] == "subject"


async def test_events_are_published_once_more(api: Api, archive: Archive, path: str) -> None:
    assert (await api.post(f"{path}/replay", {"all": True, "note": "a new consumer"}))["count"] == 5
    rows = query(archive.url, "SELECT generation, published_at IS NULL AS waits FROM outbox_events")
    assert rows == [{"generation": 1, "waits": True}] * 5
    assert (await api.post(f"{path}/replay", {"kind": "tasks", "all": True}, 422))["error"]["field"] == "kind"


async def test_what_takes_too_long_is_not_begun(archive: Archive, settings: Settings) -> None:
    @asynccontextmanager
    async def source(context: object) -> AsyncIterator[object]:
        async with connected(archive.url, "test") as lent:
            yield lent

    desk = ArchiveHandlers(settings.contexts, source, patience=0.0)
    with pytest.raises(TooMany, match="within 0 s"):
        await desk._count(
            CountArchived(context=archive.relay.context, kind=ArchiveKind.OUTBOX, wanted=RowFilter())
        )


async def test_a_context_without_an_archive_says_so(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        for action in ("restore", "replay"):
            refused = await api.post(f"/contexts/sea/archive/{action}", {"all": True}, 404)
            assert refused["error"]["code"] == "ARCHIVE_OFF"
        assert (await api.post("/contexts/sea/archive/verify", {}, 404))["error"]["code"] == "ARCHIVE_OFF"


@pytest.mark.parametrize("act", ["restore", "replay"])
async def test_rows_that_are_archived_after_the_count_are_left(api: Api, archive: Archive, act: str) -> None:
    path = f"/contexts/{archive.relay.context}/archive/{act}"
    dry = await api.post(path, {"all": True, "dry_run": True})
    late = await archive.events(2)
    await archive.command(rows=1).run(ANN)
    done = await api.post(path, {"selection": dry["selection"]})
    assert (dry["count"], done["count"]) == (5, 5)
    assert not {*late} & {*archive.in_table()}
    shown = await api.get(f"/contexts/{archive.relay.context}/audit/{done['deed']}")
    assert shown["action"] == {"restore": "archive.restore", "replay": "outbox.replay"}[act]
    again = await api.post(path, {"selection": dry["selection"]}, 409)
    assert again["error"]["code"] == "SELECTION_USED"
