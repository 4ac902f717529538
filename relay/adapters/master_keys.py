"""The master keys that a key service opens, kept by this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from relay.domain.errors import KeyServiceUnreachable, MasterKeyMissing, Outage
from relay.domain.personal import KEY_BYTES, SealedKey
from relay.ports.key_service import KeyService

#: A key in use is asked for again so often, beside its use: so long it is used after the service refuses it.
AGAIN_S: Final = 600.0
#: Who asks so soon after a failure gets the same failure: a crowd does not wait for time-out after time-out.
PAUSE_S: Final = 1.0


@dataclass
class _Opened:
    """A key, and when it was asked for. ``failure``: why there is none."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    key: bytes | None = field(default=None, repr=False)
    failure: Outage | None = None
    asked_at: float = float("-inf")


class MasterKeys:
    """As many keys as the settings name. A service that is away takes none that is here; a refusal does."""

    def __init__(self, service: Callable[[], KeyService], clock: Callable[[], float] = time.monotonic) -> None:
        self._service, self._clock = service, clock
        self._opened: dict[tuple[str, SealedKey], _Opened] = {}
        self._lock = threading.Lock()

    def key(self, name: str, sealed: SealedKey) -> bytes:
        """The key; the first question blocks.

        Raises KeyServiceUnreachable, MasterKeyMissing and MissingExtraError.
        """
        with self._lock:
            it = self._opened.setdefault((name, sealed), _Opened())
        if (key := it.key) is None:
            with it.turn:
                return it.key or self._first(name, sealed, it)
        if self._clock() - it.asked_at > AGAIN_S and it.turn.acquire(blocking=False):
            threading.Thread(target=self._beside, args=(name, sealed, it), daemon=True).start()
        return key

    def _first(self, name: str, sealed: SealedKey, it: _Opened) -> bytes:
        if it.failure is not None and self._clock() - it.asked_at < PAUSE_S:
            raise type(it.failure)(it.failure.message, hint=it.failure.hint)
        try:
            it.key = _checked(name, self._service().open(name, sealed))
        except Outage as error:
            it.failure = error
            raise
        finally:
            it.asked_at = self._clock()
        return it.key

    def _beside(self, name: str, sealed: SealedKey, it: _Opened) -> None:
        try:
            it.key = _checked(name, self._service().open(name, sealed))
        except KeyServiceUnreachable:
            pass
        except MasterKeyMissing as error:
            it.key, it.failure = None, error
        finally:
            it.asked_at = self._clock()
            it.turn.release()


def _checked(name: str, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise MasterKeyMissing(f"what is sealed as {name!r} is not a key of {KEY_BYTES} bytes")
    return key


def _aws() -> KeyService:
    from relay.adapters.aws_kms import AwsKms  # noqa: PLC0415 - an extra

    return AwsKms()


#: Of this process.
OPENED: Final = MasterKeys(_aws)
