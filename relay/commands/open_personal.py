"""Reads personal values of payloads: finds their keys, keeps these for a minute, and decrypts."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from relay.domain.errors import KeysUnreachable, UnknownKey
from relay.domain.personal import Cipher, Masters, decrypt, encrypted
from relay.ports.subject_keys import SubjectKeys, WrappedKey

#: How long a key is kept: so long after a person is forgotten, the last process forgets the key.
KEPT_S: Final = 60.0
#: How many keys are kept.
MOST: Final = 10_000
#: How long a key may take to come. A worker that waits holds its claim meanwhile.
PATIENCE_S: Final = 3.0


class OpenedPayload(NamedTuple):
    """A payload in plain text. ``forgotten``: whether values are null because their person was forgotten."""

    payload: Any
    forgotten: bool


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
    _kept: OrderedDict[UUID, tuple[float, bytes | None]] = field(default_factory=OrderedDict, repr=False)

    async def open(self, payload: Any) -> OpenedPayload:
        """Decrypt a payload; this changes it. Raises Outage, UnknownKey and PersonalDamaged."""
        root = [payload]
        found = encrypted(payload)
        wanted: dict[str, set[UUID]] = {}
        for _, value in found:
            wanted.setdefault(value.context, set()).add(value.key)
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
                rows = await self.keys(context).find(missing)
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

    def _keep(self, found: Mapping[UUID, bytes | None], now: float) -> None:
        for id, key in found.items():
            self._kept[id] = now + KEPT_S, key
            self._kept.move_to_end(id)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
