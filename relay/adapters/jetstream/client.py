"""nats-py's client with a fast path in and out, and with a parser that reads every message the server accepts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, ERR_RE, PERMISSIONS_ERR, Parser

from relay.adapters.jetstream.refusals import ClosedAfterHandshakeError, Refusal, Refusals
from relay.domain.reading import read_subject
from relay.ports import Delivery

#: Takes subject, reply subject, body and raw headers of a message, on the event loop; must not raise.
Listener: TypeAlias = Callable[[bytes, bytes, bytes, bytes | None], None]

#: A message without reply subject and headers, with a body that holds no carriage return.
_PLAIN_MESSAGE: Final = re.compile(rb"MSG (\S+) (\d+) (\d+)\r\n([^\r]*)\r\n")
_LINE_BREAK: Final = b"\r\n"
#: Up to this many bytes are written without waiting for the socket.
_MAX_DIRECT_WRITE_BYTES: Final = 65_536
_SPACE: Final = " \t\r\n\v\f"
#: Number of tokens in the reply subject of a delivery: the short form, and the form with domain and account, which
#: may have more tokens at the end.
_BARE, _LONG = 9, 11
_NEXT_SERVER: Final = re.compile(r",(?=\s*(?:nats|tls|wss?)://)", re.IGNORECASE)


def servers(url: str) -> list[str]:
    """Split a list of servers at its commas. A comma counts only before a scheme: it may be part of a password.

    The schemes are in lower case: nats-py takes any other for the name of a host, without TLS.
    """
    found = (server.strip().partition("://") for server in _NEXT_SERVER.split(url))
    return [f"{scheme.lower()}{separator}{rest}" for scheme, separator, rest in found]


class _Parser(Parser):
    """Reads messages itself and leaves the rest to nats-py's parser, which is slower.

    nats-py's parser needs several regular expressions and copies for each message. It also ends a subject at any
    white space. The server ends a subject at a space or a tab only, and accepts all other bytes from producers.
    A message that this client could not read would cut its connection each time.
    """

    nc: RelayClient

    async def parse(self, data: bytes = b"") -> None:
        """Parse bytes from the socket."""
        if self.state == AWAITING_MSG_PAYLOAD:
            # The rest of a message whose beginning was in earlier data.
            rest = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:rest])
            data = data[rest:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        position = self.nc.read(data, 0)
        while (end := data.find(_LINE_BREAK, position)) >= 0:
            after = end + CRLF_SIZE
            if (message := _announced(data[position:end])) is None:
                await super().parse(data[position:after])
                position = self.nc.read(data, after)
                continue
            subject, sid, reply, head, size = message
            position = after + size + CRLF_SIZE
            if position > len(data):
                self.msg_arg = {"subject": subject, "sid": sid, "reply": reply}
                self.header_needed, self.needed = head, size
                self.state, position = AWAITING_MSG_PAYLOAD, after
                break
            body = after + head
            await self.nc.deliver(sid, subject, reply, data[body : after + size], data[after:body] or None)
            position = self.nc.read(data, position)
        self.buf += data[position:]


def _announced(line: bytes) -> tuple[bytes, int, bytes, int, int] | None:
    """What a line announces: subject, subscription, reply subject, size of headers, size of headers and body."""
    match line.split(b" "):
        case [b"HMSG", subject, sid, head, size]:
            return subject, int(sid), b"", int(head), int(size)
        case [b"HMSG", subject, sid, reply, head, size]:
            return subject, int(sid), reply, int(head), int(size)
        case [b"MSG", subject, sid, size]:
            return subject, int(sid), b"", 0, int(size)
        case [b"MSG", subject, sid, reply, size]:
            return subject, int(sid), reply, 0, int(size)
    return None


class RelayClient(Client):
    """nats-py's client with a fast path in and out, for tens of thousands of messages.

    nats-py's own path costs a task switch, a queue and an object for every message received, and checks by
    regular expressions for every message sent. On the fast path the callers check what they send and receive.
    """

    def __init__(self, url: str) -> None:
        """``url`` may list several servers of a cluster (`servers`).

        If one of the addresses demands TLS, none may do without: all get the same credentials.
        """
        super().__init__()
        self._addresses = servers(url)
        self._insists = any(address.startswith("tls://") for address in self._addresses)
        self._listeners: dict[int, Listener] = {}
        self._ps = _Parser(self)
        self._flushing = False
        self.refusals = Refusals()
        #: Whether the server has sent its first line, or the TLS handshake comes before that.
        self._greeted = False
        #: Called for every missing permission.
        self.on_refused: Callable[[Refusal], None] | None = None

    async def connect(self, **options: Any) -> None:  # type: ignore[override]
        """As of nats-py, which leaves the socket open when it fails or is cancelled."""
        try:
            await super().connect(servers=self._addresses, **options)
        except BaseException:
            # Not `close`: it waits for the end of a TLS handshake that never comes.
            if (writer := getattr(self._transport, "_io_writer", None)) is not None:
                writer.transport.abort()
            raise

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Send no credentials in the clear when TLS is configured.

        nats-py alone would believe what the server says about TLS, or a program that pretends to be the server.
        """
        self._greeted = True
        if initial_connection and self._wants_tls():
            if not info.get("tls_required") and not info.get("tls_available"):
                raise nats.errors.Error("the server offers no TLS, which is configured for it")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    def _wants_tls(self) -> bool:
        """Whether TLS is configured. WebSockets have TLS of their own."""
        uri = self._current_server.uri if self._current_server else None
        if uri is None or uri.scheme in ("ws", "wss"):
            return False
        return self._insists or "tls" in self.options or uri.scheme == "tls"

    async def _process_connect_init(self) -> None:
        """Tell a server that closes the connection after the handshake from a server that is away.

        With TLS 1.3 the server checks the client's certificate only after the handshake is over for the client.
        """
        self._greeted = bool(self.options["tls_handshake_first"])
        try:
            await super()._process_connect_init()
        except ConnectionError as error:
            if not (self._greeted and self._wants_tls()):
                raise
            demands = ", and demands a certificate that it trusts" if self._server_info.get("tls_verify") else ""
            raise ClosedAfterHandshakeError(f"the server closed it after the handshake{demands}") from error

    async def _process_err(self, err_msg: str) -> None:
        """Note a missing permission. The server reports each once, and does not close the connection."""
        # nats-py passes the text in lower case, but subjects are case-sensitive.
        line = ERR_RE.match(self._ps.buf) if PERMISSIONS_ERR in err_msg else None
        refusal = (
            self.refusals.note(line[1].decode(errors="replace"), self._inbox_prefix.decode()) if line else None
        )
        if refusal is not None and self.on_refused is not None:
            self.on_refused(refusal)
        await super()._process_err(err_msg)

    async def listen(self, subject: str, listener: Listener) -> Subscription:
        """Subscribe. ``listener`` is called for every message as it is read from the socket."""
        subscription = await self.subscribe(subject)
        self._listeners[subscription._id] = listener  # noqa: SLF001
        return subscription

    async def unlisten(self, subscription: Subscription) -> None:
        """End a subscription of `listen`."""
        self._listeners.pop(subscription._id, None)  # noqa: SLF001
        await subscription.unsubscribe()

    def read(self, data: bytes, position: int) -> int:
        """Give the plain messages at ``position`` in ``data`` to their listeners; returns where they end."""
        match, listeners = _PLAIN_MESSAGE.match, self._listeners
        while message := match(data, position):
            subject, sid, size, body = message.groups()
            listener = listeners.get(int(sid))
            if listener is None or len(body) != int(size):
                break
            listener(subject, b"", body, None)
            position = message.end()
        return position

    async def deliver(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Give a message to its listener as it is, else to nats-py."""
        listener = self._listeners.get(sid)
        if listener is None:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]
        else:
            listener(subject, reply, data, headers)

    _process_msg = deliver

    def check_writable(self) -> None:
        """Raise OutboundBufferLimitError while there is no connection."""
        if not self.is_connected or self._flush_queue is None:
            raise nats.errors.OutboundBufferLimitError

    def write(self, *parts: bytes) -> None:
        """Send parts of protocol commands, together with all that is written in the same iteration of the loop.

        They are not copied. Raises OutboundBufferLimitError while there is no connection.
        """
        self.check_writable()
        self._pending += parts
        self._pending_data_size += sum(map(len, parts))
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_written)

    def _flush_written(self) -> None:
        """Send what this iteration of the loop wrote.

        A little goes at once, more by nats-py's task, which can wait.
        """
        self._flushing = False
        if not self._pending or not self.is_connected or self._flush_queue is None or self._transport is None:
            return
        if self._pending_data_size > _MAX_DIRECT_WRITE_BYTES:
            if self._flush_queue.empty():
                self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
            return
        # An error ends the connection. The reading side notices that.
        with suppress(OSError, RuntimeError):
            self._transport.write(b"".join(self._pending))
        self._pending.clear()
        self._pending_data_size = 0

    async def written(self) -> None:
        """Wait until the socket has taken all written bytes. A connection lost meanwhile counts as done."""
        if self._flush_queue is not None:
            # nats-py's own forced flush swallows a cancellation, and so the caller's time-out.
            future = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(future)
            await future


# --- what a message says ---


class Arrived(NamedTuple):
    """A message as it arrived."""

    subject: bytes
    reply: bytes
    body: bytes
    headers: bytes | None


def read_headers(raw: bytes | None) -> dict[str, str]:
    """The headers of a message; for a status also its number and text. Other lines are left out."""
    if not raw:
        return {}
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    headers = _status(first)
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip(_SPACE)
        if colon and name.isascii() and len(name.split()) <= 1:
            headers[name] = value.strip(_SPACE)
    return headers


def _status(line: str) -> dict[str, str]:
    """The status in the first line, after its version, if there is one."""
    _, _, text = line.partition(" ")
    number, _, description = text.strip(_SPACE).partition(" ")
    if not number:
        return {}
    return {"Status": number, "Description": description} if description else {"Status": number}


class Place(NamedTuple):
    """The fields of a delivery's reply subject. ``at``: when it was stored, in nanoseconds of Unix time."""

    stream: str
    stream_seq: int
    consumer_seq: int
    at: int
    pending: int


def read_place(reply: bytes) -> Place | None:
    """The place of a message in its stream and consumer. None if no consumer sent it."""
    tokens = reply.split(b".")
    if len(tokens) != _BARE:
        tokens = [*tokens[:2], *tokens[4:]] if len(tokens) >= _LONG else []
    if tokens[:2] != [b"$JS", b"ACK"]:
        return None
    try:
        return Place(tokens[2].decode(), *map(int, tokens[5:9]))
    except ValueError:
        return None


def read_delivery(message: Arrived) -> Delivery | None:
    """The delivery in a message. None if no consumer sent it."""
    if (place := read_place(message.reply)) is None:
        return None
    subject, legible = read_subject(message.subject)
    return Delivery(
        subject=subject,
        reply=message.reply.decode("utf-8", "replace"),
        headers=read_headers(message.headers),
        body=message.body,
        stream=place.stream,
        stream_seq=place.stream_seq,
        consumer_seq=place.consumer_seq,
        legible=legible,
        stored_at=datetime.fromtimestamp(place.at / 1e9, UTC),
    )
