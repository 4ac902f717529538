"""The registry of targets: what type checkers accept and what rows can be written through."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import get_args, get_origin

import pytest

from relay.adapters.postgres import targets
from relay.adapters.postgres.enqueue import Row
from relay.domain.errors import UnsupportedTarget


def test_what_type_checkers_accept_is_what_rows_are_written_through() -> None:
    accepted = {get_origin(it) or it for it in get_args(targets.SyncTarget | targets.AsyncTarget)}
    named = {f"{it.__module__}.{it.__qualname__}" for it in accepted - {*targets._WRITERS}}
    protocols = {f"{it.__module__}.{it.__qualname__}" for it in (targets.AsyncpgTarget, targets.DjangoTarget)}
    theirs = {name for name in targets._MODULES if name.startswith(("asyncpg.", "django."))}
    assert named - protocols == {*targets._MODULES} - theirs
    assert protocols < named


@pytest.mark.parametrize("name", targets._MODULES)
def test_a_class_that_is_known_by_its_name_has_that_name(name: str) -> None:
    module, _, kind = name.rpartition(".")
    found = getattr(import_module(module), kind)
    assert f"{found.__module__}.{found.__qualname__}" == name
    assert targets._writer(found) is not None


def test_a_target_is_written_through_as_its_nearest_known_class() -> None:
    class Subclass(targets.Session):
        pass

    assert targets.write(Subclass(), [], "done") == "done"
    with pytest.raises(UnsupportedTarget):
        targets.write(SimpleNamespace(), [], "done")


async def later(target: object, rows: Sequence[Row]) -> None:
    """The writer of an asynchronous target."""


@pytest.mark.anyio
async def test_a_further_kind_needs_a_writer_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, awaited = type("Plain", (), {}), type("Awaited", (), {})
    written: list[object] = []
    further = {plain: lambda target, rows: written.extend(rows), awaited: later}
    monkeypatch.setattr(targets, "_WRITERS", {**targets._WRITERS, **further})
    assert targets.write(plain(), ["row"], "done") == "done"
    assert await targets.write(awaited(), ["row"], "done") == "done"
    assert written == ["row"]
