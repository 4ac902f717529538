"""An archive in a bucket: what a store that speaks like S3 is asked, and what it may answer."""

from __future__ import annotations

import asyncio
import io
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.adapters.coldstore import BucketStore
from relay.devstack import NatsServer
from relay.domain.archive import ArchiveConflict, StoreUnreachable
from relay.domain.errors import ConfigurationError
from tests.integration.archiving import ANN, archived
from tests.s3 import Buckets, serving

pytestmark = pytest.mark.anyio
NAME = "sea/outbox/00000001.json"


async def content(store: BucketStore) -> bytes | None:
    into = io.BytesIO()
    return into.getvalue() if await store.get(NAME, into) else None


async def test_rows_leave_for_a_bucket_and_are_found_there(
    database_url: str, nats_server: NatsServer, tmp_path: Path, buckets: Buckets
) -> None:
    store = buckets.store(buckets.create())
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        await archive.events(3)
        command = archive.command(store, rows=2)
        assert [batch.rows for batch in (await command.run(ANN)).batches] == [2, 1]
        assert [(found.error, found.left_over) async for found in command.verify()] == [(None, False)] * 2
        assert archive.in_table() == []
        assert len(await store.names(f"{archive.relay.context}/outbox/")) == 4


async def test_a_store_that_goes_away_in_the_middle_loses_nothing(
    database_url: str, nats_server: NatsServer, tmp_path: Path
) -> None:
    """And the next run goes on when it is back."""
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        ids = await archive.events(3)
        with ExitStack() as away:
            leaving = away.enter_context(serving())
            bucket = leaving.create()
            with pytest.raises(StoreUnreachable):
                await archive.command(leaving.store(bucket), rows=1).run(ANN, on_batch=lambda _: away.close())
        assert archive.in_table() == sorted(ids[1:])
        with serving() as back:
            command = archive.command(back.store(bucket), rows=1)
            await command.run(ANN)
            assert [(found.error, found.left_over) async for found in command.verify()] == [(None, False)] * 3
        assert archive.in_table() == []


async def test_of_two_databases_the_second_does_not_overwrite_the_first(buckets: Buckets) -> None:
    bucket = buckets.create()
    await buckets.store(bucket).put(NAME, io.BytesIO(b"rows"))
    with pytest.raises(ArchiveConflict, match=rf"s3://{bucket}/relay/prod/{NAME} exists already"):
        await buckets.store(bucket).put(NAME, io.BytesIO(b"rowz"))
    assert await content(buckets.store(bucket)) == b"rows"


async def test_options_reach_the_store(buckets: Buckets) -> None:
    bucket = buckets.create()
    await buckets.store(bucket, aws_server_side_encryption="AES256").put(NAME, io.BytesIO(b"rows"))
    assert await asyncio.to_thread(buckets.encryption, bucket, NAME) == "AES256"
    with pytest.raises(ConfigurationError, match=f"s3://{bucket}/relay/prod: .*colour"):
        buckets.store(bucket, colour="blue")


async def test_a_bucket_that_is_not_there_is_an_outage_and_is_not_made(buckets: Buckets) -> None:
    store = buckets.store("not-there")
    with pytest.raises(StoreUnreachable, match="bucket"):
        await store.put(NAME, io.BytesIO(b"rows"))
    with pytest.raises(StoreUnreachable, match="bucket"):
        await content(store)
    with pytest.raises(StoreUnreachable):
        await store.names("sea/")
    with pytest.raises(StoreUnreachable):
        await store.delete(NAME)


async def test_a_store_that_is_away_is_an_outage(buckets: Buckets) -> None:
    store = BucketStore("s3://cold", {**buckets.options, "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(StoreUnreachable, match="s3://cold: "):
        await content(store)
