"""Links between real sockets: what each mode does to connections that are open and to new ones."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaos.proxy import Link, Proxy, at_port
from chaos.proxy_connection import Mode
from relay.devstack.ports import LOOPBACK
from tests.waiting import wait_for

SILENCE = 0.2


class Echo:
    """A server that sends back what it gets, with a prefix; remembers what it got and how connections ended."""

    def __init__(self, prefix: bytes = b"") -> None:
        self.prefix = prefix
        self.accepted = 0
        self.received: list[bytes] = []
        self.ends: list[str] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received.append(data)
                    connection.sendall(self.prefix + data)
                self.ends.append("closed")
            except OSError:
                self.ends.append("reset")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def link(proxy: Proxy, echo: Echo) -> Link:
    return proxy.link("client-echo", echo.port)


@pytest.fixture
def connect(link: Link) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection((LOOPBACK, link.port), timeout=5))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def ask(connection: socket.socket, text: bytes = b"hello") -> bytes:
    connection.sendall(text)
    return receive(connection, len(text))


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(65536)):
        data += more
    return data


def silent(connection: socket.socket, seconds: float = SILENCE) -> bool:
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)
    return False


# --- pass ---


def test_bytes_pass_in_both_directions_whatever_their_number(connect: Any, link: Link) -> None:
    data = bytes(range(256)) * 8192
    connection = connect()
    answer: list[bytes] = []
    reader = threading.Thread(target=lambda: answer.append(receive(connection, len(data))))
    reader.start()
    connection.sendall(data)
    reader.join()
    assert answer == [data]
    assert (link.counters.accepted, link.counters.requested, link.counters.replied) == (1, len(data), len(data))


def test_the_end_of_a_connection_passes(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    assert link.open == 1
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
    wait_for("both ends are closed", lambda: echo.ends == ["closed"] and link.open == 0)


def test_a_reset_passes(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()
    wait_for("it is reset", lambda: echo.ends == ["reset"] and link.open == 0)
    assert link.counters.reset == 0


def test_a_server_that_is_not_there_resets_the_client_until_it_is(proxy: Proxy, echo: Echo) -> None:
    with socket.create_server((LOOPBACK, 0)) as nobody:
        port = nobody.getsockname()[1]
    link = proxy.link("client-nobody", port)

    def first_byte() -> bytes:
        with socket.create_connection((LOOPBACK, link.port), timeout=5) as connection:
            return connection.recv(1)

    with pytest.raises(ConnectionResetError):  # as early as in connect()
        first_byte()
    assert link.counters.unreachable == 1
    link.retarget(echo.port)  # it has come up, elsewhere
    with socket.create_connection((LOOPBACK, link.port), timeout=5) as connection:
        assert ask(connection) == b"hello"


# --- cut ---


def test_cut_resets_what_is_open_and_refuses_what_is_new(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.cut()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    wait_for("it is reset", lambda: echo.ends == ["reset"])
    with pytest.raises(ConnectionRefusedError):
        connect()
    assert (link.mode, link.counters.reset) == (Mode.CUT, 1)
    link.cut()
    link.heal()
    assert ask(connect()) == b"hello"


def test_a_reset_leaves_the_mode(connect: Any, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.reset()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    assert link.mode is Mode.PASS
    assert ask(connect()) == b"hello"


# --- black hole ---


def test_a_black_hole_holds_everything_back_and_delivers_it_late(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.black_hole()
    connection.sendall(b"late")
    assert silent(connection)
    assert echo.received == [b"hello"]
    link.heal()
    assert receive(connection, 4) == b"late"


def test_a_black_hole_accepts_new_connections(connect: Any, echo: Echo, link: Link) -> None:
    link.black_hole()
    connection = connect()
    connection.sendall(b"late")
    assert silent(connection)
    assert echo.accepted == 0
    link.heal()
    assert receive(connection, 4) == b"late"


def test_a_black_hole_hides_that_a_side_has_closed(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.black_hole()
    connection.close()
    time.sleep(SILENCE)
    assert echo.ends == []
    link.heal()
    wait_for("it has ended", lambda: echo.ends)


def test_a_black_hole_that_forgets_connections_delivers_nothing(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.black_hole()
    connection.sendall(b"never")
    assert silent(connection)
    link.reset()
    link.heal()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    wait_for("it is reset", lambda: echo.ends == ["reset"])
    assert echo.received == [b"hello"]


def test_a_deaf_link_lets_requests_through_and_holds_the_replies(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.black_hole(replies_only=True)
    connection.sendall(b"done")
    wait_for("the bytes arrive", lambda: echo.received == [b"hello", b"done"])
    assert silent(connection)
    link.heal()
    assert receive(connection, 4) == b"done"


def test_a_mute_link_holds_requests_and_lets_replies_through(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.black_hole(replies_only=True)
    connection.sendall(b"one")
    wait_for("the bytes arrive", lambda: echo.received == [b"hello", b"one"])
    link.black_hole(requests_only=True)
    assert receive(connection, 3) == b"one"
    connection.sendall(b"two")
    assert silent(connection)
    connect()
    assert echo.received == [b"hello", b"one"]
    assert echo.accepted == 1
    link.heal()
    assert receive(connection, 3) == b"two"


# --- delay ---


def test_a_delay_counts_in_each_direction_and_not_for_each_piece(connect: Any, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.delay(0.3)
    began = time.monotonic()
    for _ in range(200):
        connection.sendall(b"abc")
        time.sleep(0.01)
    assert receive(connection, 600) == b"abc" * 200
    assert 0.6 <= time.monotonic() - began < 60  # one after the other they would take 120 s


def test_the_end_of_a_delay_is_felt_at_once(connect: Any, link: Link) -> None:
    connection = connect()
    link.delay(60)
    connection.sendall(b"soon")
    assert silent(connection)
    link.heal()
    assert receive(connection, 4) == b"soon"


# --- cut mid-reply ---


def test_a_reply_is_cut_after_the_bytes_it_is_allowed(connect: Any, echo: Echo, link: Link) -> None:
    connection = connect()
    ask(connection)
    link.cut_replies(3)
    connection.sendall(b"request")
    assert receive(connection, 3) == b"req"
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    assert echo.received == [b"hello", b"request"]
    assert link.counters.reset == 1
    wait_for("it is reset", lambda: echo.ends == ["reset"])


def test_the_allowance_is_for_each_connection_and_over_several_replies(connect: Any, link: Link) -> None:
    link.cut_replies(7)
    for _ in range(2):
        connection = connect()
        assert ask(connection) == b"hello"
        connection.sendall(b"hello")
        assert receive(connection, 2) == b"he"
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    link.heal()
    assert ask(connect(), b"long enough") == b"long enough"


def test_a_connection_survives_when_the_cut_is_healed_before_it_bites(connect: Any, link: Link) -> None:
    connection = connect()
    link.cut_replies(100)
    ask(connection)
    link.heal()
    assert ask(connection, b"x" * 200) == b"x" * 200


# --- the whole ---


def test_links_are_independent(proxy: Proxy, echo: Echo, link: Link) -> None:
    other = proxy.link("other-echo", echo.port)
    link.cut()
    with socket.create_connection((LOOPBACK, other.port), timeout=5) as connection:
        assert ask(connection) == b"hello"


def test_stopping_resets_everything_and_may_be_repeated(echo: Echo) -> None:
    proxy = Proxy()
    proxy.stop()  # never started
    with Proxy() as proxy:
        link = proxy.link("client-echo", echo.port)
        connection = socket.create_connection((LOOPBACK, link.port), timeout=5)
        ask(connection)
        link.black_hole()
    with connection, pytest.raises(ConnectionResetError):
        connection.recv(1)
    proxy.stop()


def test_an_address_by_another_port_keeps_all_else() -> None:
    assert at_port("redis://:pa55@127.0.0.1:1234/0?a=b", 99) == "redis://:pa55@127.0.0.1:99/0?a=b"
