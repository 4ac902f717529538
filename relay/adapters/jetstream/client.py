"""nats-py's client with a short way in and out, and with a parser that reads whatever the server takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, ERR_RE, PERMISSIONS_ERR, Parser

from relay.adapters.jetstream.refusals import Refusal, Refusals

#: Takes subject, reply subject, body and raw headers of a message, on the event loop; must not raise.
Listener: TypeAlias = Callable[[bytes, bytes, bytes, bytes | None], None]

#: A message without reply subject and headers, in whose body there is no line break.
_PLAIN_MESSAGE: Final = re.compile(rb"MSG (\S+) (\d+) (\d+)\r\n([^\r]*)\r\n")
_LINE_BREAK: Final = b"\r\n"
#: So many bytes are written without asking whether the socket takes them.
_AT_ONCE: Final = 65_536


class _Parser(Parser):
    """nats-py's parser, which takes several regular expressions and copies for a message, after a quicker one.

    Its expressions also end a subject at any white space. The server ends it at a space or a tab, and takes from
    producers whatever is neither: a message that this client could not read would cut its connection each time.
    """

    nc: RelayClient

    async def parse(self, data: bytes = b"") -> None:
        """Take in what the socket gave."""
        if self.state == AWAITING_MSG_PAYLOAD:
            # The rest of a message whose beginning came before.
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
            await self.nc.take(sid, subject, reply, data[body : after + size], data[after:body] or None)
            position = self.nc.read(data, position)
        self.buf += data[position:]


def _announced(line: bytes) -> tuple[bytes, int, bytes, int, int] | None:
    """The message behind a line: subject, subscription, reply subject, bytes of its headers and of all of it."""
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
    """nats-py's client with a short way in and out, for messages by the ten thousand.

    Its own way costs a task switch, a queue and an object for every message received, and checks by
    regular expressions for every message sent; both ends of this one are checked where they are used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._listeners: dict[int, Listener] = {}
        self._ps = _Parser(self)
        self._turning = False
        self.refusals = Refusals()
        #: Called with every permission that turns out to be missing.
        self.on_refused: Callable[[Refusal], None] | None = None

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Send no credentials in the clear where TLS is configured.

        nats-py goes by what the server, or whoever answers for it, says of itself.
        """
        uri = self._current_server.uri if self._current_server else None
        wanted = "tls" in self.options or (uri is not None and uri.scheme == "tls")
        if initial_connection and wanted and uri is not None and uri.scheme not in ("ws", "wss"):
            if not info.get("tls_required") and not info.get("tls_available"):
                raise nats.errors.Error("the server offers no TLS, which is configured for it")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        """Note a missing permission, of which the server says once what it is. It closes nothing."""
        # nats-py hands on the text in lower case, and subjects are not.
        found = ERR_RE.match(self._ps.buf) if PERMISSIONS_ERR in err_msg else None
        refusal = (
            self.refusals.note(found[1].decode(errors="replace"), self._inbox_prefix.decode()) if found else None
        )
        if refusal is not None and self.on_refused is not None:
            self.on_refused(refusal)
        await super()._process_err(err_msg)

    async def listen(self, subject: str, listener: Listener) -> Subscription:
        """Subscribe, and have ``listener`` called for every message as it is read from the socket."""
        subscription = await self.subscribe(subject)
        self._listeners[subscription._id] = listener  # noqa: SLF001
        return subscription

    async def unlisten(self, subscription: Subscription) -> None:
        """End what `listen` has begun."""
        self._listeners.pop(subscription._id, None)  # noqa: SLF001
        await subscription.unsubscribe()

    def read(self, data: bytes, position: int) -> int:
        """Hand over the listeners' plain messages that ``data`` has at ``position``; returns where they end."""
        while found := _PLAIN_MESSAGE.match(data, position):
            subject, sid, size, body = found.groups()
            listener = self._listeners.get(int(sid))
            if listener is None or len(body) != int(size):
                break
            listener(subject, b"", body, None)
            position = found.end()
        return position

    async def take(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Hand over any message, to a listener as it is."""
        listener = self._listeners.get(sid)
        if listener is None:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]
        else:
            listener(subject, reply, data, headers)

    _process_msg = take

    def write(self, command: bytes) -> None:
        """Have a protocol command sent, together with what else is written before the loop turns.

        Raises OutboundBufferLimitError while there is no connection.
        """
        if not self.is_connected or self._flush_queue is None:
            raise nats.errors.OutboundBufferLimitError
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        """Send what this turn of the loop has written: at once if it is little, else by the task that can wait."""
        self._turning = False
        if not self._pending or not self.is_connected or self._flush_queue is None or self._transport is None:
            return
        if self._pending_data_size > _AT_ONCE:
            if self._flush_queue.empty():
                self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
            return
        # An error ends the connection, of which the reading side hears.
        with suppress(OSError, RuntimeError):
            self._transport.write(b"".join(self._pending))
        self._pending.clear()
        self._pending_data_size = 0

    async def written(self) -> None:
        """Wait until the socket has taken what was written. A connection that is lost meanwhile counts as done."""
        if self._flush_queue is not None:
            # nats-py's own forced flush swallows a cancellation, and with it the caller's time-out.
            future = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(future)
            await future
