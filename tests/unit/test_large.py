"""References to large payloads, room for them in memory, and the folder where a host keeps them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from relay.adapters.payload_files import PayloadFiles
from relay.concurrency import ByteBudget
from relay.domain.errors import MalformedMessage, PayloadDamaged, PayloadUnreachable
from relay.domain.large import MAX_LARGE_BYTES, Reference
from relay.domain.limits import PAYLOAD

pytestmark = pytest.mark.anyio

GOOD = Reference("shop", UUID(int=7), 5, "a" * 64)


def of(content: bytes, number: int = 1) -> Reference:
    return Reference("shop", UUID(int=number), len(content), hashlib.sha256(content).hexdigest())


def put(files: PayloadFiles, content: bytes, number: int) -> Reference:
    reference = of(content, number)
    with files.making(reference) as part:
        part.write(content)
    return reference


# --- references ---


def test_a_reference_is_read_as_it_was_written() -> None:
    assert Reference.of({PAYLOAD: GOOD.text}) == GOOD
    assert json.loads(GOOD.payload) == {"relay:payload": json.loads(GOOD.text)}
    assert Reference.of({}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"store": "elsewhere"},
        {"context": "a.b"},
        {"context": 5},
        {"id": "x"},
        {"size": 0},
        {"size": True},
        {"size": MAX_LARGE_BYTES + 1},
        {"sha256": "A" * 64},
        {"sha256": "a" * 63},
        {"sha256": None},
    ],
)
def test_another_reference_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        Reference.read(json.dumps(json.loads(GOOD.text) | change))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 100_000])
def test_what_is_no_reference_is_malformed(text: str) -> None:
    with pytest.raises(MalformedMessage):
        Reference.read(text)


# --- room in memory ---


async def test_who_waits_longest_is_next() -> None:
    budget, order = ByteBudget(10), list[int]()

    async def take(size: int) -> None:
        async with budget.take(size, 60) as taken:
            assert taken
            order.append(size)

    async with budget.take(6, 60):
        tasks = [asyncio.create_task(take(size)) for size in (7, 1, 100)]
        await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*tasks)
    assert order == [7, 1, 100]


async def test_who_gives_up_or_is_cancelled_leaves_room_for_others() -> None:
    budget = ByteBudget(10)
    async with budget.take(6, 60):
        cancelled = asyncio.create_task(budget.take(9, 60).__aenter__())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        async with budget.take(7, 0.01) as taken:
            assert not taken
        async with budget.take(4, 60) as taken:
            assert taken
    async with budget.take(10, 60) as taken:
        assert taken


# --- files ---


def test_the_files_that_were_used_last_stay(tmp_path: Path) -> None:
    files = PayloadFiles(tmp_path / "files", 25)
    first, second = put(files, b"0123456789", 1), put(files, b"0123456789", 2)
    for reference, at in ((first, 100), (second, 50)):
        os.utime(tmp_path / "files" / reference.name, (at, at))
    third = put(files, b"0123456789", 3)
    assert [files.find(it) is not None for it in (first, second, third)] == [True, False, True]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    files = PayloadFiles(tmp_path / "files", 100)
    put(files, b"x", 1)
    old, new = (tmp_path / "files" / f"{name}.part" for name in ("old", "new"))
    for part in (old, new):
        part.write_bytes(b"")
    os.utime(old, (1, 1))
    put(files, b"y", 2)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("content", [b"01234", b"0123456789", b"01234x", b""])
def test_other_content_gets_no_name(tmp_path: Path, content: bytes) -> None:
    files, reference = PayloadFiles(tmp_path / "files", 100), of(b"012345")
    with pytest.raises(PayloadDamaged), files.making(reference) as part:
        part.write(content)
    assert list((tmp_path / "files").iterdir()) == []


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files").chmod(0o777)
    with pytest.raises(PayloadUnreachable, match="others may write"):
        put(PayloadFiles(tmp_path / "files", 100), b"x", 1)
