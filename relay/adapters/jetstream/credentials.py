"""Creds files and nkey seeds, with which a NATS user signs the server's challenge.

nats-py reads such files too. But a creds file without its markers makes it read for ever, and an invalid seed ends
its reconnecting for good.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import nats.errors

from relay.domain.errors import ConfigurationError, MissingExtraError

_JWT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+([\w.=-]+)\s+-+END NATS USER JWT-+", re.ASCII)
_SEED: Final = re.compile(r"-+BEGIN USER NKEY SEED-+\s+([A-Z0-9]+)\s+-+END USER NKEY SEED-+", re.ASCII)


def creds_options(path: Path) -> dict[str, Any]:
    """The options of ``nats.connect`` for a creds file. It is read on every connect, so it can be renewed.

    Raises ConfigurationError when the file cannot be used now, MissingExtraError without the package ``nkeys``.
    """
    _signer(_creds(path, "credentials")[1], path, "credentials")

    def jwt() -> bytes:
        with _later():
            return _creds(path, "credentials")[0].encode()

    def sign(nonce: str) -> bytes:
        with _later():
            return _signer(_creds(path, "credentials")[1], path, "credentials")(nonce)

    return {"user_jwt_cb": jwt, "signature_cb": sign}


def nkey_options(path: Path) -> dict[str, Any]:
    """The options of ``nats.connect`` for a file with an nkey seed, read now. Raises as `creds_options` does."""
    seed = _text(path, "nkey").strip()
    _signer(seed, path, "nkey")
    return {"nkeys_seed_str": seed}


def _creds(path: Path, field: str) -> tuple[str, str]:
    text = _text(path, field)
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise ConfigurationError(
            f"{path} is not a creds file: it lacks a user JWT or a seed", field=f"nats.{field}"
        )
    return jwt[1], seed[1]


def _text(path: Path, field: str) -> str:
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", field=f"nats.{field}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not text", field=f"nats.{field}") from None


def _signer(seed: str, path: Path, field: str) -> Callable[[str], bytes]:
    """A function that signs. It catches Exception, as the errors of ``nkeys`` have no common base."""
    try:
        import nkeys  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingExtraError(
            "creds files and nkeys need the package nkeys", hint="pip install 'jetrelay[nkeys]'"
        ) from None
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
    except Exception:
        raise ConfigurationError(f"{path} holds no valid nkey seed", field=f"nats.{field}") from None
    return lambda nonce: base64.b64encode(pair.sign(nonce.encode()))


@contextmanager
def _later() -> Iterator[None]:
    """Make nats-py try again when the file cannot be used at this moment, for example while it is written."""
    try:
        yield
    except ConfigurationError as error:
        raise nats.errors.Error(error.message) from None
