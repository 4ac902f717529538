"""docs/reference/wire.md: one event as it travels in each envelope, made by the code that makes real messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from relay.commands.outgoing import outgoing
from relay.domain.actor import ACTOR_ID, ACTOR_KIND
from relay.domain.envelopes import ENVELOPES, Envelope, handler_request
from relay.domain.envelopes.cloudevents import Wording, cloudevents
from relay.domain.routing import Routing
from relay.ports import OutboxRow

_ROUTING: Final = Routing(context="shop", streams={"SHOP_EVENTS": ["shop.event.>"]})
_ROW: Final = OutboxRow(
    id="019a20d4-c2a4-7cd6-9ae5-3f4f4d1f0b11",
    event_type="order_placed",
    event_version=1,
    payload='{"item": "a book", "euros": 12, "order_id": "2abb00f7"}',
    occurred_at="2026-11-23T16:40:38.512034Z",
    correlation_id="019a20d4-c29b-7ad3-8f2a-5f6b8a0a7c01",
    causation_id=None,
    partition_key="order:2abb00f7",
    topic=None,
    headers=json.dumps({ACTOR_ID: "ann", ACTOR_KIND: "HUMAN"}),
    publish_attempts=1,
    generation=0,
    seq=1,
)
_STRUCTURED: Final = cloudevents(Wording("shop", True, (("subject", "{key}"),)))
_FORMS: Final[Mapping[str, Envelope]] = {
    "handler": ENVELOPES["handler"],
    "message-envelope": ENVELOPES["message-envelope"],
    "cloudevents, binary": ENVELOPES["cloudevents"],
    "cloudevents, structured": _STRUCTURED,
    "raw": ENVELOPES["raw"],
}
_HEAD: Final = """\
# Messages on the wire

One event of the context `shop`, as it is in the stream for each [envelope](envelopes.md), and the call that a
handler gets. The event is `order_placed`, version 1, of the aggregate `order` `2abb00f7`. Its
actor is a human called `ann`.

<!-- Made by the code that publishes: python -m docsite.reference -->

## Subject and stream

The subject is made of the template `{context}.event.{name}.v{version}`: `shop.event.order_placed.v1`. An event
with a `topic` goes there instead; [routes](../how-to/streams.md) may say otherwise. The stream is the one that
takes the subject, here `SHOP_EVENTS`. Dead letters of a context are in the stream `{CONTEXT}_DLQ`.

## Headers of every message

| Header | Meaning |
|---|---|
| `Nats-Msg-Id` | the id by which JetStream drops what comes again; `.1`, `.2` … behind it after a replay |
| `Relay-Partition-Key` | the key within which the order holds; absent if the event has none |
| `Relay-Event-Id` | the id of the event, where `Nats-Msg-Id` is another one |
| `Nats-Expected-Stream` | the stream that is named for the event: the server refuses it elsewhere |
| `Relay-Actor-Id`, `Relay-Actor-Kind` | who caused it, if known: `HUMAN`, `AGENT` or `SYSTEM` |
| `traceparent` | the trace, if there is one |
| `Relay-Expires-At` | the time in UTC from which on nobody handles it, if it expires |
| `Relay-Payload` | where the payload is, if it is [large](#large-payloads) |
| `Nats-TTL` | after how many seconds its stream removes it, if that does so (`message_ttl`) |
"""
_PERSONAL: Final = """\
## Large payloads

A payload above `payload_limit` is `{"relay:payload": …}` with the JSON of the header `Relay-Payload`: `v` (1),
`store` (`outbox`), `context`, `id` (of its row), `size` and `sha256` of its JSON text in UTF-8. To get it,
request `relay.payloads.<context>` with `id`, `size`, `sha256`, `offset` and `length` (at most 262144). The
answer is those bytes, or has the header `Nats-Service-Error-Code`.

## Personal values

A [personal value](../how-to/personal-data.md) is an object with one member, `relay:personal`, an object of `v`
(1), `context`, `key` (a UUID) and `data`: base64 of nonce (12 bytes), ciphertext and tag (16 bytes), by
AES-256-GCM. The plain text is JSON. The additional data are five lines, joined by line breaks:
`relay:personal`, `1`, the context, the key, the value's place as a JSON pointer such as `/address/street`. A
master key wraps a key in the same form; its lines are `relay:key`, `1`, the key, the master key's name.
Vectors: `tests/personal_values.json`.

"""
_FOREIGN: Final = """\
## Messages of other producers

A message that jetrelay has not written is read by the envelope of the subscription. It needs the header
`Nats-Msg-Id`; a CloudEvent may have its own id instead. And it needs:

| Envelope | What makes it readable |
|---|---|
| `handler` | an object with `event_type`, `event_version` and `payload` |
| `message-envelope` | the fields that its schema requires: `relay schema message-envelope` |
| `cloudevents` | `specversion` and `type`, as headers `ce-…` or in a JSON body with `data` |
| `raw` | any JSON. The type is the header `Relay-Event-Type`, else it is made of the subject |

Under `raw`, the subject `shop.event.order_placed.v1` is the type `order_placed`, version 1, and `orders.placed` is
`orders_placed`, version 1. What cannot be read becomes a dead letter of the class `poison`, which names the part
at fault. Set `Nats-Msg-Id` in any case: without it a stream stores what is published again once more.
"""


def page() -> str:
    """The whole page."""
    forms = [part for name, envelope in _FORMS.items() for part in _message(name, envelope)]
    return "\n".join([_HEAD, *forms, *_call(), _PERSONAL + _FOREIGN])


def _message(name: str, envelope: Envelope) -> list[str]:
    sent = outgoing(_ROW, routing=_ROUTING, envelope=envelope, max_payload=1024**2)
    return [f"## {name}\n", *_shown(f"PUB {sent.subject}", sent.headers, sent.body)]


def _call() -> list[str]:
    sent = outgoing(_ROW, routing=_ROUTING, envelope=ENVELOPES["handler"], max_payload=1024**2)
    request = handler_request(ENVELOPES["handler"], sent.subject, sent.headers, sent.body)
    headers = {
        "content-type": "application/json",
        "idempotency-key": _ROW.id,
        "relay-attempt": "1",
        "x-correlation-id": str(_ROW.correlation_id),
        "relay-actor-id": "ann",
        "relay-actor-kind": "HUMAN",
    }
    said = "The same for every envelope. [What to answer](../how-to/http-handlers.md), and how calls are signed.\n"
    return ["## The call of a handler\n", said, *_shown("POST /handle", headers, request.body)]


def _shown(line: str, headers: Mapping[str, str], body: bytes) -> list[str]:
    lines = [line, *(f"{name}: {value}" for name, value in headers.items())]
    content: Any = json.loads(body)
    return ["```http", *lines, "", json.dumps(content, indent=2), "```\n"]
