"""Large payloads (claim check): the content stays where it is stored, and the message refers to it.

A context with ``payload_limit`` publishes a larger payload as a reference. The header `PAYLOAD` holds it, as JSON,
and the body has it in the place of the payload, under `MEMBER`. Readers go by the header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from relay.domain.errors import InvalidSubject, MalformedMessage, PayloadTooLarge
from relay.domain.limits import PAYLOAD
from relay.domain.subject import check_token

#: The only member of a payload that stands for a large one.
MEMBER: Final = "relay:payload"
#: The largest payload that is taken, in bytes of JSON.
MAX_LARGE_BYTES: Final = 64 * 1024**2
#: Where the outbox of a context keeps the content: its row.
IN_OUTBOX: Final = "outbox"
#: Where a context keeps it outside of its database.
IN_BUCKET: Final = "bucket"
#: A reference takes fewer bytes than this, in the body and in the header.
REFERENCE_BYTES: Final = 1_024

_VERSION: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the payload of an event is: ``store`` of ``context``, under the ``id`` of its row.

    ``size`` and ``sha256`` are those of its JSON text in UTF-8, as PostgreSQL writes it.
    """

    context: str
    id: UUID
    size: int
    sha256: str
    store: str = IN_OUTBOX

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Reference | None:
        """The reference of a message; None if it has its payload. Raises MalformedMessage."""
        return cls.read(headers[PAYLOAD]) if PAYLOAD in headers else None

    @classmethod
    def read(cls, text: str) -> Reference:
        """Read the value of the header. Raises MalformedMessage."""
        try:
            found = json.loads(text)
            if found["v"] != _VERSION or found["store"] not in (IN_OUTBOX, IN_BUCKET):
                raise MalformedMessage("is of a version or a store that is not known here", field=PAYLOAD)
            size, sha256 = found["size"], found["sha256"]
            if type(size) is not int or not 0 < size <= MAX_LARGE_BYTES or not _DIGEST.match(sha256):
                raise MalformedMessage("has no usable size or digest", field=PAYLOAD)
            return cls(check_token(found["context"], "context"), UUID(found["id"]), size, sha256, found["store"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidSubject):
            raise MalformedMessage("is no reference to a payload", field=PAYLOAD) from None

    @property
    def text(self) -> str:
        """The value of the header."""
        return json.dumps(
            {
                "v": _VERSION,
                "store": self.store,
                "context": self.context,
                "id": str(self.id),
                "size": self.size,
                "sha256": self.sha256,
            }
        )

    @property
    def payload(self) -> str:
        """What the body has in the place of the payload."""
        return f'{{"{MEMBER}": {self.text}}}'

    @property
    def where(self) -> str:
        """What people are told about it."""
        return f"{self.size / 1024**2:.1f} MB, in the {self.store} of {self.context}"

    @property
    def name(self) -> str:
        """A name for the content that no other content has."""
        return f"{self.context}.{self.id}.{self.sha256}"


def check_large(size: int) -> None:
    """Refuse a payload of ``size`` bytes that even a reference cannot carry. Raises PayloadTooLarge."""
    if size > MAX_LARGE_BYTES:
        raise PayloadTooLarge(
            f"the payload takes {size} bytes, the limit is {MAX_LARGE_BYTES}",
            field="payload",
            hint="store the content elsewhere and send a reference to it",
        )
