"""Dead letters, as those get them who subscribe to a stream of letters: the event MessageDeadLettered.

A letter has one form, whatever envelope its context has. Its id is its own. The message that died is its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from relay.domain.envelopes.event import Envelope, Outgoing
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID
from relay.domain.reading import read_object

#: The header of every letter, with the name of the context that wrote it.
LETTER: Final = "Relay-Dead-Letter"
#: What a letter says has happened.
DEAD_LETTERED: Final = "message_dead_lettered"


def _encode(_event: Outgoing) -> NoReturn:
    raise NotImplementedError("letters are written by relay.commands.deadletter")


def _decode(_subject: str, _headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
    letter = read_object(body)
    return {
        "event_type": DEAD_LETTERED,
        "event_version": 1,
        CORRELATION_ID: letter.get(CORRELATION_ID),
        CAUSATION_ID: letter["message_id"],
        "payload": letter,
    }


DEAD_LETTER: Final = Envelope(_encode, _decode)
