"""AES-256-GCM by `cryptography`, which is loaded with this module: import it only where a key is used."""

from __future__ import annotations

import os
from typing import Final
from uuid import UUID

from relay.adapters.master_keys import OPENED
from relay.domain.errors import MasterKeyMissing, MissingExtraError, PersonalDamaged
from relay.domain.personal import KEY_BYTES, Cipher, Masters, SealedKey, bound_key

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    raise MissingExtraError("cryptography is not installed", hint="pip install 'jetrelay[personal]'") from None

_NONCE_BYTES: Final = 12


def new_key() -> bytes:
    """A random key of 256 bits."""
    return os.urandom(KEY_BYTES)


def encrypt(key: bytes, plain: bytes, bound: bytes) -> bytes:
    """The nonce, the ciphertext and the tag."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, bound)


def decrypt(key: bytes, data: bytes, bound: bytes) -> bytes:
    """The plain text. Raises PersonalDamaged."""
    try:
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], bound)
    except (InvalidTag, ValueError):
        raise PersonalDamaged("was changed, moved to another place, or encrypted with another key") from None


def encrypting(key: bytes) -> Cipher:
    """A cipher of `relay.domain.personal`. Unlike a partial function, it does not show its key."""

    def cipher(plain: bytes, bound: bytes) -> bytes:
        return encrypt(key, plain, bound)

    return cipher


def decrypting(key: bytes) -> Cipher:
    """The other direction. The cipher raises PersonalDamaged."""

    def cipher(data: bytes, bound: bytes) -> bytes:
        return decrypt(key, data, bound)

    return cipher


def wrap(masters: Masters, id: UUID, key: bytes) -> bytes:
    """A key, encrypted with the present master key. Raises KeyServiceUnreachable and MasterKeyMissing."""
    return encrypt(_opened(masters.present, masters.keys[masters.present]), key, bound_key(id, masters.present))


def unwrap(masters: Masters, id: UUID, master: str, wrapped: bytes) -> bytes:
    """A key. Raises KeyServiceUnreachable, MasterKeyMissing and PersonalDamaged."""
    if (found := masters.keys.get(master)) is None:
        raise MasterKeyMissing(
            f"the key {id} is wrapped by the master key {master[:64]!r}, which this process has not",
            hint=f"add [personal.masters.{master[:64]}]",
        )
    return decrypt(_opened(master, found), wrapped, bound_key(id, master))


def _opened(name: str, master: bytes | SealedKey) -> bytes:
    return master if isinstance(master, bytes) else OPENED.key(name, master)
