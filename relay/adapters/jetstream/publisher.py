"""NatsJetStreamPublisher: PORT-047-003, pipelined.

A batch is sent without waiting. Every message has a reply subject of its own below one inbox, and a single
subscription collects the PubAcks. Messages of one key are a chain: the next leaves when the PubAck of the one
before it arrives. The number of bytes under way adapts to the link. If more bytes were under way than the link can
carry in time, answers would come after the time of the claim, and pings of the connection would come too late.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import nats.errors

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.refusals import Refusal
from relay.adapters.jetstream.stores import Stores
from relay.domain.disclosure import printable
from relay.domain.errors import BrokerUnreachable
from relay.domain.limits import DEFAULT_MAX_PAYLOAD_BYTES
from relay.domain.ordering import chains
from relay.domain.policies import NoStream, NotSent, OutcomeUnknown, Published, PublishOutcome, RowRejected
from relay.domain.routing import EXPECTED_STREAM
from relay.ports import Message

#: The limit of bytes under way: at first, its minimum and its maximum. A single message may be larger.
_FIRST_WINDOW_BYTES: Final = 256_000
_MIN_WINDOW_BYTES: Final = 64_000
_MAX_WINDOW_BYTES: Final = 4_000_000
#: About how many bytes a message has besides its body on the wire.
_OVERHEAD_BYTES: Final = 500
#: Bytes per second of the slowest link that must still carry messages of a megabyte.
_SLOWEST_BYTES_PER_S: Final = 250_000
#: Server errors that are due to the message itself (nats-server error codes), and whether they are final.
#: 10054: the message is too large for its stream, whose limit can be changed. 10097: its headers are too large for
#: any stream.
_ROW_ERRORS: Final = {10054: False, 10097: True}
#: Transient errors: the stream is full, or the server has no room or no leader now.
_PASSING_ERRORS: Final = {10077, 10122, 10023, 10008, 10009, 10039, 10074, 10203}
_OTHER_STREAM: Final = 10060
#: A message cannot be stored. If the text says so, a limit of the stream is reached (discard new).
_NOT_STORED: Final = 10077
_LIMIT_REACHED: Final = "maximum "
_FULL: Final = "the stream is full, and events wait: raise its limits or shorten its max_age"
#: The form of nearly every answer. All others are parsed as JSON.
_ACK: Final = re.compile(rb'\{"stream":"([A-Za-z0-9_-]{1,255})","seq":([1-9][0-9]{0,17})\}')
#: The largest sequence that a row can hold.
_MAX_SEQ: Final = 2**63 - 1
_MAX_STREAM_CHARS: Final = 255
#: No answer of a server is longer. A longer one is not even parsed.
_MAX_ANSWER_BYTES: Final = 65_536
#: Only headers that are nearly this long can be too long for every stream (JetStream's limit is 65,535 bytes).
_LONG_HEADERS_BYTES: Final = 60_000
_NO_DOUBT: Final = object()
_FOREIGN: Final = "something that is no stream answers on {}; end it, or forbid it that subject"
_NO_RESPONDERS: Final = b"NATS/1.0 503"
#: What no name of a stream contains.
_NOT_IN_NAMES: Final = re.compile(r"[\s.*>/\\]")
_ANY_SPACE: Final = re.compile(r"\s")


class _Sent(NamedTuple):
    """A message that is under way, the rest of its chain, and when it was sent."""

    message: Message
    chain: Iterator[Message]
    at: float


class _PublishBatch:
    """One pipelined batch: messages that may leave next, messages under way by token, and the outcome of each.

    ``begun``: when the time of the claim began. Nothing is sent in its last quarter, which is for the answers.
    """

    def __init__(self, messages: Sequence[Message], begun: float, seconds: float) -> None:
        self.outcomes: dict[str, PublishOutcome] = dict.fromkeys((message.id for message in messages), NotSent())
        self.ready: deque[tuple[Message, Iterator[Message]]] = deque()
        for chain in chains(messages, lambda message: message.key):
            self.follow(iter(chain))
        self.in_flight: dict[bytes, _Sent] = {}
        #: Those in flight that got an answer that any client can give, and what it says; None if it says nothing.
        #: The PubAck may still come.
        self.doubtful: dict[bytes, PublishOutcome | None] = {}
        self.bytes = 0
        self.closing, self.deadline = begun + 0.75 * seconds, begun + seconds
        self.acks = 0
        self.done = asyncio.Event()
        self.stopped = False

    def follow(self, chain: Iterator[Message]) -> None:
        """Let the next message of a chain be sent, if there is one."""
        if message := next(chain, None):
            self.ready.append((message, chain))

    @property
    def expired(self) -> bool:
        """Whether the claim behind this batch may be lost, so that nothing may leave any more.

        A process that was paused may find old answers here, while another worker may have published the rest
        already.
        """
        return self.stopped or time.monotonic() > self.closing

    def stop(self, error: str) -> None:
        """Expect no more answers: all messages in flight have an unknown outcome."""
        self.stopped = True
        for sent in self.in_flight.values():
            self.outcomes[sent.message.id] = OutcomeUnknown(error)
        self.in_flight.clear()
        self.done.set()

    def doubt(self, token: bytes, outcome: PublishOutcome | None) -> None:
        """Note an answer that is no PubAck. What others send may leave meanwhile."""
        sent = self.in_flight.get(token)
        if sent is None:
            return
        if token not in self.doubtful:
            self.bytes -= len(sent.message.body) + _OVERHEAD_BYTES
            self.done.set()
        self.doubtful[token] = self.doubtful.get(token) or outcome

    def give_up(self, error: str) -> None:
        """The time for answers is over: errors count now.

        An event that got only foreign answers waits by itself and holds up nobody else.
        """
        for token, outcome in self.doubtful.items():
            if (sent := self.in_flight.pop(token, None)) is not None:
                self.outcomes[sent.message.id] = outcome or NoStream(_FOREIGN.format(sent.message.subject))
        self.stop(error)

    def refuse(self, subject: str, outcome: PublishOutcome) -> None:
        """Give all messages in flight of a subject this outcome."""
        for token in [token for token, sent in self.in_flight.items() if sent.message.subject == subject]:
            message = self.in_flight.pop(token).message
            self.outcomes[message.id] = outcome
            if token not in self.doubtful:
                self.bytes -= len(message.body) + _OVERHEAD_BYTES
            self.acks += 1  # counts as an answer, although it is not a PubAck
        if not self.in_flight:
            self.done.set()

    async def answered(self, patience: float) -> None:
        """Wait until nothing is in flight.

        Raises TimeoutError when no answer comes for ``patience`` seconds plus the time that the bytes under way
        may take, or when the time of the claim is up. If each message under way has an answer that is no PubAck, a
        eighth of the patience is enough.
        """
        while self.in_flight:
            self.done.clear()
            share = 0.125 if self.doubtful and self.in_flight.keys() <= self.doubtful.keys() else 1.0
            before, silence = self.acks, share * patience + self.bytes / _SLOWEST_BYTES_PER_S
            try:
                await asyncio.wait_for(self.done.wait(), min(silence, self.deadline - time.monotonic()))
            except TimeoutError:
                if self.acks == before or time.monotonic() > self.deadline:
                    raise


class NatsJetStreamPublisher:
    """Publishes on a shared connection.

    ``ack_timeout``: how long the broker may be silent. A batch takes at most twice that since its claim began.
    This must stay below five seconds, after which PostgreSQL ends a silent claim transaction.
    """

    def __init__(self, connection: NatsConnection, *, ack_timeout: timedelta = timedelta(seconds=2)) -> None:
        self._connection = connection
        self._ack_timeout = ack_timeout.total_seconds()
        self._client: RelayClient | None = None
        self._stores: Stores
        self._checks: set[asyncio.Future[None]] = set()
        self._inbox = ""
        self._tokens = 0
        self._waiting: dict[bytes, _PublishBatch] = {}
        self._subscribing = asyncio.Lock()
        self._window = _FIRST_WINDOW_BYTES
        self.max_payload = DEFAULT_MAX_PAYLOAD_BYTES
        connection.on_down.append(self._on_down)
        connection.on_refused.append(self._on_refused)

    def largest(self, otherwise: int) -> int:
        """The limit of the server for a whole message, in bytes; ``otherwise`` before the first connection."""
        return otherwise if self._client is None else self.max_payload

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Publish one message; see the port."""
        outcomes = await self.publish_all([Message("single", subject, payload, headers)])
        return outcomes["single"]

    async def publish_all(
        self, messages: Sequence[Message], begun: float | None = None
    ) -> Mapping[str, PublishOutcome]:
        """Publish a batch; see the port."""
        # Time counts from the claim: making the messages and waiting for the connection use it up, too.
        batch = _PublishBatch(messages, time.monotonic() if begun is None else begun, 2 * self._ack_timeout)
        client = await self._ready()
        if batch.expired:
            raise BrokerUnreachable("the time of the claim was up before NATS was reached")
        try:
            self._fill(client, batch)
            await batch.answered(self._ack_timeout)
        except TimeoutError:
            batch.give_up(f"no PubAck within {self._ack_timeout:g} s")
        except (nats.errors.Error, OSError) as error:
            batch.stop(f"connection lost: {str(error) or type(error).__name__}")
        finally:
            self._forget(batch)
        return batch.outcomes

    async def _ready(self) -> RelayClient:
        client = await self._connection.client()
        async with self._subscribing:
            if client is not self._client:
                self._inbox = client.new_inbox()
                try:
                    await client.listen(f"{self._inbox}.*", self._on_ack)
                except (nats.errors.Error, OSError) as error:
                    raise BrokerUnreachable(f"NATS is not reachable: {error}") from error
                self._client, self._stores = client, Stores(client)
        self.max_payload = client.max_payload
        return client

    def _fill(self, client: RelayClient, batch: _PublishBatch) -> None:
        """Send ready messages while there is time and the limit of bytes under way allows it."""
        while batch.ready:
            size = len(batch.ready[0][0].body) + _OVERHEAD_BYTES
            if batch.expired or (batch.in_flight and batch.bytes + size > self._window):
                return
            self._send(client, batch, *batch.ready.popleft())

    def _send(self, client: RelayClient, batch: _PublishBatch, message: Message, chain: Iterator[Message]) -> None:
        self._tokens += 1
        token, reply = b"%d" % self._tokens, f"{self._inbox}.{self._tokens}"
        try:
            command = publish_command(message.subject, reply, message.headers, message.body)
        except ValueError as error:
            batch.outcomes[message.id] = RowRejected(str(error))
            return
        if len(command) > client.max_payload and _size(message) > client.max_payload:
            # The caller checked against an older limit. This server, or a new configuration, has a lower one.
            batch.outcomes[message.id] = RowRejected(f"over the server's limit of {client.max_payload} bytes")
            return
        client.write(command)
        batch.in_flight[token] = _Sent(message, chain, time.monotonic())
        batch.bytes += len(message.body) + _OVERHEAD_BYTES
        self._waiting[token] = batch

    def _on_ack(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        token = subject[subject.rfind(b".") + 1 :]
        batch = self._waiting.get(token)
        sent = None if batch is None else batch.in_flight.get(token)
        if batch is None or sent is None:
            self._waiting.pop(token, None)
            return
        message, _, at = sent
        seconds = time.monotonic() - at
        outcome = read_puback(data, headers, message.subject, message.headers, seconds)
        if type(outcome) is Published:
            if self._stores.sure(outcome.stream, message.subject):
                self._settle(token, batch, outcome, seconds)
                return
            check = asyncio.ensure_future(self._check(token, batch, outcome, message))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        elif data or outcome is None:
            batch.doubt(token, outcome)
            self._go_on(batch)
        else:  # no responders: says the server
            self._settle(token, batch, outcome, seconds)

    async def _check(self, token: bytes, batch: _PublishBatch, outcome: Published, message: Message) -> None:
        """Settle the first PubAck of a stream, if the server knows that stream, too."""
        stores = self._stores
        if await stores.confirm(outcome.stream, outcome.seq, message.subject, message.headers):
            self._settle(token, batch, outcome, outcome.seconds)
        else:
            batch.doubt(token, None)
            self._go_on(batch)

    def _settle(self, token: bytes, batch: _PublishBatch, outcome: PublishOutcome, seconds: float) -> None:
        """Note the outcome of a message, and send what may follow."""
        self._waiting.pop(token, None)
        sent = batch.in_flight.pop(token, None)
        if sent is None:
            return
        message, chain, _ = sent
        batch.acks += 1
        if batch.doubtful.pop(token, _NO_DOUBT) is _NO_DOUBT:
            self._adapt(batch, len(message.body) + _OVERHEAD_BYTES, seconds)
        batch.outcomes[message.id] = outcome
        if type(outcome) is Published:
            batch.follow(chain)
        self._go_on(batch)
        if not batch.in_flight:
            batch.done.set()

    def _go_on(self, batch: _PublishBatch) -> None:
        """Send what may leave now."""
        try:
            if batch.ready and self._client is not None:
                self._fill(self._client, batch)
        except (nats.errors.Error, OSError) as error:
            batch.stop(f"connection lost: {str(error) or type(error).__name__}")

    def _adapt(self, batch: _PublishBatch, size: int, seconds: float) -> None:
        """Adapt the limit of bytes under way to the link: halve it when answers are slow, else raise it."""
        batch.bytes -= size
        if seconds > self._ack_timeout / 4:
            self._window = max(self._window // 2, _MIN_WINDOW_BYTES)
        elif self._window < _MAX_WINDOW_BYTES:
            self._window += size

    def _on_down(self) -> None:
        for batch in set(self._waiting.values()):
            batch.stop("connection lost")
        self._waiting.clear()

    def _on_refused(self, refusal: Refusal) -> None:
        """End what gets no answer: one subject if publishing to it is refused, all if the inbox is refused."""
        for batch in set(self._waiting.values()):
            if refusal.inbox:
                batch.stop(str(refusal))
            elif refusal.verb == "publish":
                batch.refuse(refusal.subject, NoStream(str(refusal)))

    def _forget(self, batch: _PublishBatch) -> None:
        batch.stopped = True
        for token in [token for token, owner in self._waiting.items() if owner is batch]:
            del self._waiting[token]


def _size(message: Message) -> int:
    """Bytes of headers and body on the wire, which the server limits."""
    return len(message.body) + sum(len(name) + len(value) + 4 for name, value in message.headers.items()) + 12


# --- on the wire ---


def publish_command(subject: str, reply: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The HPUB command of a message. Raises ValueError for a header or subject that would break its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header contains a line break")
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    line = f"HPUB {_checked(subject)} {reply} {len(head)} {len(head) + len(body)}\r\n"
    return b"".join((line.encode(), head, body, b"\r\n"))


@lru_cache(maxsize=4_096)
def _checked(subject: str) -> str:
    if not subject or _ANY_SPACE.search(subject):
        raise ValueError("a subject is empty or contains white space")
    return subject


def read_puback(
    data: bytes, headers: bytes | None, subject: str, sent: Mapping[str, str], seconds: float = 0.0
) -> PublishOutcome | None:
    """Turn the answer to a publish into an outcome; None if no server of JetStream gives such an answer.

    Any client may subscribe to the subject of an event and answer. ``sent``: the headers of the message.
    ``seconds``: how long the answer took.
    """
    if plain := _ACK.fullmatch(data):
        return _stored(plain[1].decode(), int(plain[2]), False, sent, seconds)
    if not data and headers and headers.startswith(_NO_RESPONDERS):
        return NoStream.missing(subject)
    answer = _object(data)
    if answer is None:
        return None
    if "error" in answer:
        return _refused(answer["error"], subject, sent)
    return _stored(answer.get("stream"), answer.get("seq"), answer.get("duplicate", False), sent, seconds)


def _object(data: bytes) -> dict[str, Any] | None:
    """The JSON object of an answer; None if it is none."""
    if not 2 <= len(data) <= _MAX_ANSWER_BYTES or data[:1] != b"{":
        return None
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _stored(stream: Any, seq: Any, duplicate: Any, sent: Mapping[str, str], seconds: float) -> Published | None:
    """A PubAck; None unless its values are possible, and those of the stream that the message named."""
    possible = (
        type(stream) is str
        and type(seq) is int
        and type(duplicate) is bool
        and 0 < len(stream) <= _MAX_STREAM_CHARS
        and stream.isprintable()
        and not _NOT_IN_NAMES.search(stream)
        and 0 < seq <= _MAX_SEQ
    )
    if not possible or sent.get(EXPECTED_STREAM, stream) != stream:
        return None
    return Published(stream, seq, duplicate, seconds)


def _refused(error: Any, subject: str, sent: Mapping[str, str]) -> PublishOutcome | None:
    named = error if isinstance(error, dict) else {}
    code, status, description = named.get("err_code"), named.get("code"), named.get("description", "")
    if type(code) is not int or type(status) is not int or type(description) is not str:
        return None
    if code == _OTHER_STREAM:
        return NoStream.mismatch(subject, sent.get(EXPECTED_STREAM, "?"))
    text = f"{printable(description)} ({code})"
    if code in _ROW_ERRORS:
        # An answer alone ends no event: it is final only for what every stream would refuse.
        long = sum(len(name) + len(value) + 4 for name, value in sent.items()) > _LONG_HEADERS_BYTES
        return RowRejected(text, final=_ROW_ERRORS[code] and long)
    if code == _NOT_STORED and description.startswith(_LIMIT_REACHED):
        return OutcomeUnknown(f"{text}: {_FULL}")
    if code in _PASSING_ERRORS or status == 503:
        return OutcomeUnknown(text)
    return NoStream(text)
