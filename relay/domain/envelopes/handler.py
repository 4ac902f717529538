"""``handler``: the body is the request of the handler contract, payload inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from relay.domain.envelopes.agreement import agreed
from relay.domain.envelopes.event import (
    CAUSATION,
    CORRELATION,
    EVENT_TYPE,
    EVENT_VERSION,
    OCCURRED_AT,
    Envelope,
    Outgoing,
    Own,
    json_text,
    type_headers,
)
from relay.domain.reading import read_object

_SPOKEN: Final = (EVENT_TYPE, EVENT_VERSION, OCCURRED_AT, CORRELATION, CAUSATION)


def _encode(event: Outgoing) -> tuple[str, Own]:
    body = (
        f'{{"message_id":{json_text(event.id)},"subject":"{event.subject}","event_type":"{event.event_type}",'
        f'"event_version":{event.event_version},"occurred_at":"{event.occurred_at}",'
        f'"correlation_id":{json_text(event.correlation_id)},"causation_id":{json_text(event.causation_id)},'
        f'"payload":{event.payload}}}'
    )
    # The body holds everything, so these headers have no value, and a caller cannot set them. If the subject does
    # not name the event (a topic, for example), the type headers confirm the type in the body.
    own = dict.fromkeys(_SPOKEN)
    return body, own if event.subject.endswith(f".event.{event.event_type}.v{event.event_version}") else {
        **own,
        **type_headers(event),
    }


def _decode(subject: str, headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
    return agreed(subject, headers, read_object(body))


HANDLER: Final = Envelope(_encode, _decode)
