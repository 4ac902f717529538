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
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import nats.errors

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.refusals import Refusal
from relay.adapters.jetstream.stores import Stores
from relay.domain.disclosure import printable
from relay.domain.errors import BrokerUnreachable
from relay.domain.expiry import TTL
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
#: The stream takes no messages that expire by themselves. They are sent without that for so many seconds then.
_NO_TTL: Final = 10166
_WITHOUT_TTL_S: Final = 60.0
_NO_TTL_TEXT: Final = f"({_NO_TTL})"
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
#: So many PubAcks are remembered, to notice a second answer that contradicts one.
_REMEMBERED: Final = 5_000
#: So many answers to one message are looked up, and so many to a batch besides two for each message.
_MOST_ANSWERS: Final = 64
_MOST_LOOKS: Final = 1_000
_CONTRADICTED: Final = "two answers contradict each other; it is published again"
_KEY: Final = attrgetter("key")
_LINE_BREAK: Final = b"\r\n"
#: Bytes of the first and the last line of headers.
_HEAD_BYTES: Final = len("NATS/1.0\r\n\r\n")
_NO_RESPONDERS: Final = b"NATS/1.0 503"
#: What no name of a stream contains.
_NOT_IN_NAMES: Final = re.compile(r"[\s.*>/\\]")
_ANY_SPACE: Final = re.compile(r"\s")
#: Makes a named tuple as its class does, without that one's function in Python. For what each message needs.
_new: Final = tuple.__new__


class _Sent(NamedTuple):
    """A message that is under way, the rest of its chain, and when it was sent."""

    message: Message
    chain: Iterator[Message] | None
    at: float


class _PublishBatch:
    """One pipelined batch: messages that may leave next, messages under way by token, and the outcome of each.

    ``begun``: when the time of the claim began. Nothing is sent in its last quarter, which is for the answers.
    """

    def __init__(self, messages: Sequence[Message], begun: float, seconds: float) -> None:
        self.messages = {message.id: message for message in messages}
        self.outcomes: dict[str, PublishOutcome] = dict.fromkeys(self.messages, NotSent())
        self.ready: deque[tuple[Message, Iterator[Message] | None]] = deque()
        for chain in chains(messages, _KEY):
            if len(chain) == 1:
                self.ready.append((chain[0], None))
            else:
                self.follow(iter(chain))
        self.in_flight: dict[bytes, _Sent] = {}
        #: Those in flight that got an answer that any client can give, and what it is worth.
        #: The PubAck may still come.
        self.doubtful: dict[bytes, PublishOutcome] = {}
        #: The PubAck that settled a message, and the others that came later.
        self.contested: dict[str, list[Published]] = {}
        self.checks: set[asyncio.Future[None]] = set()
        #: How many answers were looked up: to each message, and in all.
        self.looked: Counter[bytes] = Counter()
        self.most_looks = _MOST_LOOKS + 2 * len(messages)
        self.bytes = 0
        self.closing, self.deadline = begun + 0.75 * seconds, begun + seconds
        self.acks = 0
        #: Whether what is ready is about to be sent.
        self.goes_on = False
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

    def doubt(self, token: bytes, outcome: PublishOutcome) -> None:
        """Note an answer that is no PubAck. What others send may leave meanwhile."""
        sent = self.in_flight.get(token)
        if sent is not None and token not in self.doubtful:
            self.bytes -= len(sent.message.body) + _OVERHEAD_BYTES
            self.done.set()
            self.doubtful[token] = outcome

    def look(self, token: bytes) -> bool:
        """Whether one more answer to a message is looked up. A flood of them asks the server only so much."""
        if self.looked[token] >= _MOST_ANSWERS or not self.most_looks:
            return False
        self.looked[token] += 1
        self.most_looks -= 1
        return True

    def give_up(self, error: str) -> None:
        """The time for answers is over: errors count now.

        An event that got only foreign answers waits by itself and holds up nobody else.
        """
        for token, outcome in self.doubtful.items():
            if (sent := self.in_flight.pop(token, None)) is not None:
                self.outcomes[sent.message.id] = outcome
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
        while self.in_flight or self.goes_on:
            if not self.in_flight:
                await asyncio.sleep(0)
                continue
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
        self._inbox = ""
        self._tokens = 0
        self._waiting: dict[bytes, _PublishBatch] = {}
        #: The batches that may go on, in this order.
        self._going_on: list[_PublishBatch] = []
        #: The latest PubAcks that counted, by token: batch and id of the message, in two generations.
        self._counted: dict[bytes, tuple[_PublishBatch, str, Published]] = {}
        self._counted_before = self._counted
        self._subscribing = asyncio.Lock()
        self._window = _FIRST_WINDOW_BYTES
        self._without_ttl_until = 0.0
        self.max_payload = DEFAULT_MAX_PAYLOAD_BYTES
        connection.on_down.append(self._on_down)
        connection.on_refused.append(self._on_refused)

    def largest(self, otherwise: int) -> int:
        """The limit of the server for a whole message, in bytes; ``otherwise`` before the first connection."""
        return otherwise if self._client is None else self.max_payload

    @property
    def takes_ttl(self) -> bool:
        """Whether messages may say when their stream removes them: none has refused that lately."""
        return time.monotonic() >= self._without_ttl_until

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
        self._stores.forget()
        if len(self._counted) > _REMEMBERED:
            self._counted, self._counted_before = {}, self._counted
        try:
            self._fill(client, batch)
            await batch.answered(self._ack_timeout)
        except TimeoutError:
            batch.give_up(f"no PubAck within {self._ack_timeout:g} s")
        except (nats.errors.Error, OSError) as error:
            batch.stop(f"connection lost: {str(error) or type(error).__name__}")
        finally:
            self._forget(batch)
        if batch.checks:  # of answers that came second
            await asyncio.wait(batch.checks, timeout=max(0.0, batch.deadline - time.monotonic()))
        if batch.contested:
            await self._resolve(batch)
        batch.messages.clear()
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
        """Send ready messages while there is time and the limit of bytes under way allows it.

        Nothing leaves before this returns, so the time is looked at once.
        """
        ready, in_flight, outcomes = batch.ready, batch.in_flight, batch.outcomes
        if not ready or batch.expired:
            return
        client.check_writable()
        parts: list[bytes] = []
        now, number, largest = time.monotonic(), self._tokens, client.max_payload
        while ready:
            message, chain = ready[0]
            size = len(message.body) + _OVERHEAD_BYTES
            if in_flight and batch.bytes + size > self._window:
                break
            ready.popleft()
            number += 1
            try:
                head = publish_head(message.subject, f"{self._inbox}.{number}", message.headers, len(message.body))
            except ValueError as error:
                outcomes[message.id] = RowRejected(str(error))
                continue
            if size + len(head) > largest and _size(message) > largest:
                # The caller checked against an older limit. This server, or a new configuration, has a lower one.
                outcomes[message.id] = RowRejected(f"over the server's limit of {largest} bytes")
                continue
            parts += (head, message.body, _LINE_BREAK)
            token = b"%d" % number
            in_flight[token] = _new(_Sent, (message, chain, now))
            self._waiting[token] = batch
            batch.bytes += size
        self._tokens = number
        client.write(*parts)

    def _on_ack(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        token = subject[subject.rfind(b".") + 1 :]
        batch = self._waiting.get(token)
        sent = None if batch is None else batch.in_flight.get(token)
        if batch is None or sent is None:
            self._on_another(token, read_puback(data, headers, "", {}))
            return
        message, _, at = sent
        seconds = time.monotonic() - at
        outcome = read_puback(data, headers, message.subject, message.headers, seconds)
        if type(outcome) is Published and self._stores.sure(outcome, message.subject):
            self._settle(token, batch, outcome, seconds)
        elif type(outcome) is NoStream and outcome.error.endswith(_NO_TTL_TEXT) and TTL in message.headers:
            # Nothing else is concluded from it: whoever says so, the next try goes without.
            self._without_ttl_until = time.monotonic() + _WITHOUT_TTL_S
            self._settle(token, batch, NotSent(), seconds)
        elif batch.look(token):
            check = asyncio.ensure_future(self._check(token, batch, outcome, message))
            batch.checks.add(check)
            check.add_done_callback(batch.checks.discard)

    async def _check(
        self, token: bytes, batch: _PublishBatch, outcome: PublishOutcome | None, message: Message
    ) -> None:
        """Settle a message if the server confirms its answer."""
        stores, believed = self._stores, False
        if type(outcome) is Published:
            believed = await stores.confirm(outcome, message.subject, message.headers)
            if not believed:
                stores.distrust(outcome.stream)
                outcome = None
        if token not in batch.in_flight:  # another answer was quicker
            self._on_another(token, outcome)
            return
        if outcome is None or not believed:
            outcome, believed = await stores.judged(outcome, message.subject, message.headers, _size(message))
        if believed:
            self._settle(token, batch, outcome, getattr(outcome, "seconds", 0.0))
        else:
            batch.doubt(token, outcome)
            self._go_on(batch)

    def _on_another(self, token: bytes, other: PublishOutcome | None) -> None:
        """A second answer to a message. One of the two may be foreign."""
        counted = self._counted.get(token) or self._counted_before.get(token)
        if counted is None:
            return
        batch, id, ack = counted
        if other is None or (type(other) is Published and other[:2] == ack[:2]):
            return
        self._stores.distrust(ack.stream)
        if id in batch.messages:
            answers = batch.contested.setdefault(id, [ack])
            if type(other) is Published and len(answers) < _MOST_ANSWERS:
                answers.append(other)

    async def _resolve(self, batch: _PublishBatch) -> None:
        """Look up the messages of which two answers contradict each other."""
        stores, messages = self._stores, batch.messages
        batch.outcomes.update(dict.fromkeys(batch.contested, NoStream(_CONTRADICTED, sure=False)))

        async def resolve(id: str, answers: Sequence[Published]) -> None:
            for answer in answers:
                if await stores.has(answer, messages[id].headers):
                    batch.outcomes[id] = answer
                    return

        with suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + batch.deadline - time.monotonic()):
                await asyncio.gather(*(resolve(*answers) for answers in batch.contested.items()))

    def _settle(self, token: bytes, batch: _PublishBatch, outcome: PublishOutcome, seconds: float) -> None:
        """Note the outcome of a message, and send what may follow."""
        self._waiting.pop(token, None)
        sent = batch.in_flight.pop(token, None)
        if sent is None:
            return
        message, chain, _ = sent
        batch.acks += 1
        if not batch.doubtful or batch.doubtful.pop(token, _NO_DOUBT) is _NO_DOUBT:
            self._adapt(batch, len(message.body) + _OVERHEAD_BYTES, seconds)
        batch.outcomes[message.id] = outcome
        if type(outcome) is Published:
            self._counted[token] = batch, message.id, outcome
            if chain is not None:
                batch.follow(chain)
        if batch.ready:
            self._go_on(batch)
        elif not batch.in_flight:
            batch.done.set()

    def _go_on(self, batch: _PublishBatch) -> None:
        """Send soon what may leave now: once for all answers that came together."""
        if not self._going_on:
            asyncio.get_running_loop().call_soon(self._go_on_now)
        if not batch.goes_on:
            batch.goes_on = True
            self._going_on.append(batch)

    def _go_on_now(self) -> None:
        due, self._going_on = self._going_on, []
        for batch in due:
            batch.goes_on = False
            try:
                if self._client is not None:
                    self._fill(self._client, batch)
            except (nats.errors.Error, OSError) as error:
                batch.stop(f"connection lost: {str(error) or type(error).__name__}")
            if not batch.in_flight:
                batch.done.set()

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


def publish_head(subject: str, reply: str, headers: Mapping[str, str], size: int) -> bytes:
    """The HPUB command of a message, without its body of ``size`` bytes and the line break after that.

    Raises ValueError for a header or subject that would break its line.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header contains a line break")
    head = _HEAD_BYTES + (len(lines) if lines.isascii() else len(lines.encode()))
    return f"HPUB {_checked(subject)} {reply} {head} {head + size}\r\nNATS/1.0\r\n{lines}\r\n".encode()


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
    if plain := _ACK.fullmatch(data):  # so its name and its place are possible
        stream = plain[1].decode()
        meant = sent.get(EXPECTED_STREAM, stream) == stream
        return _new(Published, (stream, int(plain[2]), False, seconds)) if meant else None
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
