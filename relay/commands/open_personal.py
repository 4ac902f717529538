"""Reads personal values of payloads: finds their keys, keeps these for a minute, and decrypts."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from relay.domain.errors import KeysUnreachable, UnknownKey
from relay.domain.personal import HERE, Cipher, Masters, decrypt, encrypted
from relay.ports.subject_keys import SubjectKeys, WrappedKey

#: How long a key is kept: so long after a person is forgotten, the last process forgets the key.
KEPT_S: Final = 60.0
#: How many keys are kept.
MOST: Final = 10_000
#: About how many are asked for in one question.
TOGETHER: Final = 500
#: How long a key may take to come. A worker that waits holds its claim meanwhile.
PATIENCE_S: Final = 3.0


class OpenedPayload(NamedTuple):
    """A payload in plain text. ``forgotten``: whether values are null because their person was forgotten."""

    payload: Any
    forgotten: bool


@dataclass(slots=True)
class _Question:
    """Keys that are asked for together."""

    ids: set[UUID] = field(default_factory=set)
    answer: asyncio.Future[Mapping[UUID, WrappedKey]] | None = None


@dataclass
class OpenPersonal:
    """One for a process, on its event loop.

    ``keys``: the keys of a context. ``unwrap``: decrypts a key by the master keys. ``decrypting``: a cipher.
    """

    masters: Masters = field(repr=False)
    keys: Callable[[str], SubjectKeys]
    unwrap: Callable[[Masters, UUID, str, bytes], bytes]
    decrypting: Callable[[bytes], Cipher]
    clock: Callable[[], float] = time.monotonic
    most: int = MOST
    _questions: dict[str, _Question] = field(default_factory=dict, repr=False)
    _kept: OrderedDict[UUID, tuple[float, bytes | None]] = field(default_factory=OrderedDict, repr=False)

    async def open(self, payload: Any, here: str = HERE) -> OpenedPayload:
        """Decrypt a payload; this changes it. ``here``: the context whose database it is in.

        Raises Outage, UnknownKey and PersonalDamaged.
        """
        root = [payload]
        found = encrypted(payload)
        wanted: dict[str, set[UUID]] = {}
        for _, value in found:
            wanted.setdefault(here if value.context == HERE else value.context, set()).add(value.key)
        keys: dict[UUID, bytes | None] = {}
        for context, ids in wanted.items():
            keys |= await self._keys(context, ids)
        forgotten = False
        for place, value in found:
            # The root of a payload has no holder that we were given.
            at = place if place.pointer else place._replace(holder=root, name=0)
            if (key := keys[value.key]) is None:
                at.put(None)
                forgotten = True
            else:
                decrypt(at, value, self.decrypting(key))
        return OpenedPayload(root[0], forgotten)

    async def _keys(self, context: str, ids: Iterable[UUID]) -> Mapping[UUID, bytes | None]:
        now = self.clock()
        kept = {id: it[1] for id in ids if (it := self._kept.get(id)) is not None and it[0] > now}
        missing = [id for id in ids if id not in kept]
        if not missing:
            return kept
        try:
            async with asyncio.timeout(PATIENCE_S):
                rows = await self._asked_together(context, missing)
        except TimeoutError:
            raise KeysUnreachable(f"the keys of {context} did not come within {PATIENCE_S:g} s") from None
        found = {it.id: None if it.wrapped is None else await self._unwrapped(it, it.wrapped) for it in rows}
        for id in missing:
            if id not in found:
                raise UnknownKey(f"the context {context} has no key {id}", hint="was its database restored?")
        self._keep(found, now)
        return {**kept, **found}

    async def _unwrapped(self, it: WrappedKey, wrapped: bytes) -> bytes:
        """A key. One whose master key a service opens is unwrapped beside the loop, as that may take seconds."""
        if self.masters.is_sealed(it.master):
            return await asyncio.to_thread(self.unwrap, self.masters, it.id, it.master, wrapped)
        return self.unwrap(self.masters, it.id, it.master, wrapped)

    async def _asked_together(self, context: str, ids: Sequence[UUID]) -> Sequence[WrappedKey]:
        """Ask for keys together with all who ask now, and return these."""
        question = self._questions.get(context)
        if question is None or len(question.ids) >= TOGETHER:
            question = self._questions[context] = _Question()
            question.answer = asyncio.ensure_future(self._ask(context, question))
            # Whoever asks may have given up meanwhile.
            question.answer.add_done_callback(lambda it: it.cancelled() or it.exception())
        question.ids.update(ids)
        assert question.answer is not None
        found = await asyncio.shield(question.answer)
        return [found[id] for id in ids if id in found]

    async def _ask(self, context: str, question: _Question) -> Mapping[UUID, WrappedKey]:
        await asyncio.sleep(0)
        if self._questions.get(context) is question:
            del self._questions[context]
        return {it.id: it for it in await self.keys(context).find(sorted(question.ids))}

    def _keep(self, found: Mapping[UUID, bytes | None], now: float) -> None:
        for id, key in found.items():
            self._kept[id] = now + KEPT_S, key
            self._kept.move_to_end(id)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
