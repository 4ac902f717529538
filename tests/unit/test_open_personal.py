"""How a process finds the keys of personal values: asked for together, kept for a minute, bounded, never shown."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.adapters import aes_gcm
from relay.commands.open_personal import KEPT_S, OpenPersonal
from relay.domain.errors import DatabaseUnreachable, MasterKeyMissing, UnknownKey
from relay.domain.personal import HERE, Masters, PersonalFields, encrypt, places
from relay.ports.subject_keys import WrappedKey
from tests.clock import Clock

pytestmark = pytest.mark.anyio

MASTERS = Masters("2026", {"2026": bytes(32)})
FIELDS = PersonalFields("id", ("email", "name"))


@dataclass
class Keys:
    """The keys of a context, in memory. ``asked``: for which ids."""

    rows: dict[UUID, WrappedKey] = field(default_factory=dict)
    plain: dict[UUID, bytes] = field(default_factory=dict)
    asked: list[list[UUID]] = field(default_factory=list)
    away: bool = False

    async def find(self, ids: Sequence[UUID]) -> Sequence[WrappedKey]:
        self.asked.append(sorted(ids))
        if self.away:
            raise DatabaseUnreachable("the database is away")
        return [self.rows[id] for id in ids if id in self.rows]

    def make(self) -> UUID:
        id, key = uuid4(), aes_gcm.new_key()
        self.plain[id] = key
        self.rows[id] = WrappedKey(id, "2026", aes_gcm.wrap(MASTERS, id, key))
        return id

    def forget(self, id: UUID) -> None:
        self.rows[id] = self.rows[id]._replace(wrapped=None)

    def encrypted(self, id: UUID, content: Any) -> Any:
        content = copy.deepcopy(content)
        encrypt(places(content, FIELDS), "shop", id, aes_gcm.encrypting(self.plain[id]))
        return content


PLAIN = {"id": 1, "email": "ann@example.org", "name": "Ann"}
NULLS = {"id": 1, "email": None, "name": None}


def opening(keys: Keys, clock: Clock | None = None, **options: Any) -> OpenPersonal:
    return OpenPersonal(
        MASTERS, lambda _: keys, aes_gcm.unwrap, aes_gcm.decrypting, clock=clock or Clock(), **options
    )


async def test_the_keys_of_a_message_are_asked_for_once_and_kept_for_a_minute() -> None:
    keys, clock = Keys(), Clock()
    id, values = keys.make(), opening(keys, clock)
    for _ in range(3):
        assert await values.open(keys.encrypted(id, PLAIN)) == (PLAIN, False)
    assert keys.asked == [[id]]
    keys.forget(id)
    assert await values.open(keys.encrypted(id, PLAIN)) == (PLAIN, False)
    clock.now += KEPT_S
    for _ in range(2):
        assert await values.open(keys.encrypted(id, PLAIN)) == (NULLS, True)
    assert keys.asked == [[id], [id]]


async def test_a_payload_may_be_about_several_persons() -> None:
    keys = Keys()
    ann, bob = keys.make(), keys.make()
    keys.forget(bob)
    content = {"buyer": dict(PLAIN), "guest": dict(PLAIN)}
    for id, name in ((ann, "buyer"), (bob, "guest")):
        fields = PersonalFields("id", (f"{name}.email", f"{name}.name"))
        encrypt(places(content, fields), "shop", id, aes_gcm.encrypting(keys.plain[id]))
    assert await opening(keys).open(content) == ({"buyer": PLAIN, "guest": NULLS}, True)
    assert keys.asked == [sorted([ann, bob])]


async def test_no_more_keys_are_kept_than_the_bound() -> None:
    keys = Keys()
    values = opening(keys, most=3)
    ids = [keys.make() for _ in range(5)]
    for id in ids:
        await values.open(keys.encrypted(id, PLAIN))
    keys.asked.clear()
    for id in reversed(ids):
        await values.open(keys.encrypted(id, PLAIN))
    assert keys.asked == [[ids[1]], [ids[0]]]


async def test_what_cannot_be_had_now_is_no_verdict_on_the_message() -> None:
    keys = Keys(away=True)
    id, values = keys.make(), opening(keys)
    with pytest.raises(DatabaseUnreachable):
        await values.open(keys.encrypted(id, PLAIN))
    keys.away = False
    keys.rows[id] = keys.rows[id]._replace(master="2027")
    with pytest.raises(MasterKeyMissing, match="2027"):
        await values.open(keys.encrypted(id, PLAIN))
    keys.rows[id] = keys.rows[id]._replace(master="2026")
    assert await values.open(keys.encrypted(id, PLAIN)) == (PLAIN, False)


async def test_a_key_that_never_was_is_named() -> None:
    keys = Keys()
    id = keys.make()
    content = keys.encrypted(id, PLAIN)
    del keys.rows[id]
    with pytest.raises(UnknownKey, match=str(id)):
        await opening(keys).open(content)


async def test_no_key_is_in_the_text_of_the_object() -> None:
    keys = Keys()
    id, values = keys.make(), opening(keys)
    await values.open(keys.encrypted(id, PLAIN))
    assert str(keys.plain[id])[2:-1] not in repr(values)
    assert "\\x00" not in repr(values)


async def test_those_who_ask_at_once_ask_together() -> None:
    keys = Keys()
    ids = [keys.make() for _ in range(20)]
    opens = opening(keys)
    found = await asyncio.gather(*(opens.open(keys.encrypted(id, PLAIN)) for id in ids))
    assert [it.payload for it in found] == [PLAIN] * 20
    assert keys.asked == [sorted(ids)]


async def test_a_question_that_fails_fails_for_all_who_asked_and_not_for_the_next() -> None:
    keys = Keys(away=True)
    ids = [keys.make() for _ in range(3)]
    opens = opening(keys)
    found = await asyncio.gather(*(opens.open(keys.encrypted(id, PLAIN)) for id in ids), return_exceptions=True)
    assert [type(it) for it in found] == [DatabaseUnreachable] * 3
    keys.away = False
    assert (await opens.open(keys.encrypted(ids[0], PLAIN))).payload == PLAIN


async def test_an_unknown_key_is_nobody_elses_trouble() -> None:
    keys = Keys()
    known, lost = keys.make(), keys.make()
    payloads = [keys.encrypted(known, PLAIN), keys.encrypted(lost, PLAIN)]
    del keys.rows[lost]
    opens = opening(keys)
    one, other = await asyncio.gather(*map(opens.open, payloads), return_exceptions=True)
    assert one == (PLAIN, False)
    assert isinstance(other, UnknownKey)


async def test_who_gives_up_takes_nobody_along() -> None:
    keys = Keys()
    ids = [keys.make(), keys.make()]
    opens = opening(keys)
    first, second = (asyncio.ensure_future(opens.open(keys.encrypted(id, PLAIN))) for id in ids)
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).payload == PLAIN


async def test_a_value_of_a_task_has_its_key_where_the_task_is() -> None:
    keys, content, asked = Keys(), copy.deepcopy(PLAIN), list[str]()
    id = keys.make()
    encrypt(places(content, FIELDS), HERE, id, aes_gcm.encrypting(keys.plain[id]))

    def of(context: str) -> Keys:
        asked.append(context)
        return keys

    opens = OpenPersonal(MASTERS, of, aes_gcm.unwrap, aes_gcm.decrypting)
    assert (await opens.open(content, "sea")).payload == PLAIN
    assert asked == ["sea"]
