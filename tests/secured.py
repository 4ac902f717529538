"""Servers that demand credentials and certificates, and an authority that made these.

The wheels of PostgreSQL and Valkey are built without TLS. A front stands before them: it demands TLS and a
client's certificate as the servers themselves would, and hands on what it decrypts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import nkeys
import psycopg
import trustme

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.devstack.ports import LOOPBACK, free_port

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
#: What PostgreSQL says to those whom ``hostssl … clientcert=verify-ca`` turns away.
_NO_TLS = 'no pg_hba.conf entry for host "127.0.0.1", no encryption'
_NO_CERTIFICATE = "connection requires a valid client certificate"


class Authority:
    """An authority nobody else trusts, a server's certificate for ``localhost`` and a client's, as files."""

    def __init__(self, directory: Path, client: str = "relay") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ca, self.stranger = directory / "ca.pem", directory / "stranger.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        trustme.CA().cert_pem.write_to_path(self.stranger)
        self.certificate, self.key = _issued(authority, directory / "client", common_name=client)
        self.server_certificate, self.server_key = _issued(authority, directory / "server", "localhost", LOOPBACK)
        self._other = _issued(authority, directory / "other", "elsewhere.example")

    def demanding(self, *, misnamed: bool = False) -> ssl.SSLContext:
        """The context of a server that talks to nobody without a certificate of this authority.

        ``misnamed``: its own is for another host.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*(self._other if misnamed else (self.server_certificate, self.server_key)))
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def variables(self, prefix: str) -> dict[str, str]:
        """The three files under a table of relay.toml."""
        files = {"CA": self.ca, "CERTIFICATE": self.certificate, "KEY": self.key}
        return {f"{prefix}__{key}": str(path) for key, path in files.items()}

    def libpq(self, **changes: str) -> str:
        """The query of a database URL."""
        files = {"sslrootcert": self.ca, "sslcert": self.certificate, "sslkey": self.key}
        return "&".join(f"{key}={value}" for key, value in ({"sslmode": "verify-full"} | files | changes).items())


def _issued(authority: trustme.CA, path: Path, *names: str, common_name: str | None = None) -> tuple[Path, Path]:
    issued = authority.issue_cert(*(names or ["client.example"]), common_name=common_name)
    certificate, key = path.with_suffix(".pem"), path.with_suffix(".key")
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    return certificate, key


class _Stranger(Exception):
    """Somebody who did not prove who it is."""


class TlsFront:
    """Demands TLS on a port of its own and passes on to ``target``; ``postgres``: TLS begins as libpq asks for it.

    ``served`` counts the connections that proved themselves, ``turned_away`` those that did not.
    """

    def __init__(self, target: int, tls: ssl.SSLContext, *, postgres: bool = False) -> None:
        self.port, self.served, self.turned_away = free_port(), 0, 0
        self._target, self._tls, self._postgres = target, tls, postgres
        if postgres:
            tls.verify_mode = ssl.CERT_OPTIONAL  # it says what it misses
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self) -> None:
        self._server = socket.create_server((LOOPBACK, self.port))
        self._server.setblocking(False)
        self._tasks = {self._loop.create_task(self._accept())}

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.close()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._server)
            self._tasks.add(self._loop.create_task(self._serve(client)))

    async def _begin(self, client: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Where TLS comes first, it begins with the connection: `start_tls` loses what has come before it."""
        begun: asyncio.Future[asyncio.StreamWriter] = self._loop.create_future()
        reader = asyncio.StreamReader()
        # The writer is the protocol's own: another one would close the connection when `start_tls` replaces it.
        protocol = asyncio.StreamReaderProtocol(reader, lambda _, writer: begun.set_result(writer))
        tls = None if self._postgres else self._tls
        await self._loop.connect_accepted_socket(lambda: protocol, client, ssl=tls)
        return reader, begun.result()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises _Stranger, and what TLS raises."""
        if self._postgres:
            await _wants_tls(reader, writer)
            await writer.start_tls(self._tls)
        if not writer.get_extra_info("ssl_object").getpeercert():
            raise _Stranger(_NO_CERTIFICATE)

    async def _serve(self, client: socket.socket) -> None:
        try:
            reader, writer = await self._begin(client)
        except OSError as error:
            self.turned_away += isinstance(error, ssl.SSLError)
            return
        try:
            await self._admit(reader, writer)
            there, back = await asyncio.open_connection(LOOPBACK, self._target)
        except (_Stranger, OSError, asyncio.IncompleteReadError, asyncio.CancelledError) as error:
            if isinstance(error, _Stranger | ssl.SSLError):  # and did not just lose patience
                self.turned_away += 1
            if self._postgres and isinstance(error, _Stranger):
                _turn_away(writer, str(error))
            writer.close()
            return
        self.served += 1
        try:
            with suppress(asyncio.CancelledError):  # at the end
                await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        finally:
            back.close()
            writer.close()


async def _wants_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer libpq's first words. Raises _Stranger for a client that begins without TLS."""
    while True:
        length, code = struct.unpack("!ii", await reader.readexactly(8))
        if code == _SSL_REQUEST:
            writer.write(b"S")
            return
        if code != _GSS_REQUEST:
            await reader.readexactly(length - 8)
            raise _Stranger(_NO_TLS)
        writer.write(b"N")


def _turn_away(writer: asyncio.StreamWriter, message: str) -> None:
    body = f"SFATAL\0VFATAL\0C28000\0M{message}\0\0".encode()
    writer.write(b"E" + struct.pack("!i", len(body) + 4) + body)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


class GuardedNats(NatsServer):
    """A nats-server with a configuration of the test's own behind the usual one."""

    def __init__(self, directory: Path, guard: str, scheme: str = "nats") -> None:
        super().__init__(directory)
        self._guard, self._scheme = guard, scheme

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self.port}"

    def _configuration(self) -> str:
        store = json.dumps(str(self.directory / "jetstream"))
        return f"""\
listen: "{LOOPBACK}:{self.port}"
http: "{LOOPBACK}:{self._monitor_port}"
http_base_path: "/{self.password}"
server_name: guarded
jetstream {{ store_dir: {store}, max_file_store: 1TB }}
{self._guard}
"""


def nats_tls(authority: Authority, more: str = "") -> str:
    """The part of a configuration that demands a client's certificate."""
    return f"""\
tls {{
  cert_file: "{authority.server_certificate}"
  key_file: "{authority.server_key}"
  ca_file: "{authority.ca}"
  verify: true
  {more}
}}
"""


class GuardedValkey(ValkeyServer):
    """A Valkey with ACL users only: ``users`` are lines of an ACL file, ``default`` is off."""

    def __init__(self, directory: Path, *users: str) -> None:
        super().__init__(directory)
        self._users = users

    def prepare(self) -> Sequence[str | Path]:
        acl = self.directory / "users.acl"
        acl.write_text("".join(f"user {user}\n" for user in ("default off", *self._users)))
        return [*super().prepare(), "--aclfile", str(acl)]

    def answers(self) -> bool:
        with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"-NOAUTH")


# --- nkeys and JWTs, as the tool nsc makes them ---


@dataclass(frozen=True)
class Pair:
    """An nkey: the seed as text, and the public key."""

    seed: str
    public: str

    @classmethod
    def make(cls, kind: int) -> Pair:
        seed = nkeys.encode_seed(os.urandom(32), kind)
        return cls(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())

    def sign(self, claims: dict[str, Any]) -> str:
        """A JWT of these claims."""
        words = [{"typ": "JWT", "alg": "ed25519-nkey"}, {"iss": self.public, **claims}]
        text = ".".join(_base64(json.dumps(word).encode()) for word in words)
        return f"{text}.{_base64(nkeys.from_seed(bytearray(self.seed.encode())).sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Operator:
    """A trust chain: operator, account with JetStream, and users with creds files."""

    def __init__(self) -> None:
        self._operator = Pair.make(nkeys.PREFIX_BYTE_OPERATOR)
        self._account, self._system = (Pair.make(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(2))

    @property
    def configuration(self) -> str:
        """What a server needs to trust the operator."""
        operator = self._operator.sign(_claims(self._operator.public, "operator", {}))
        accounts = {
            pair.public: self._operator.sign(_claims(pair.public, "account", {"limits": limits}))
            for pair, limits in ((self._account, _limits(-1)), (self._system, _limits(0)))
        }
        return f"""\
operator: "{operator}"
system_account: "{self._system.public}"
resolver: MEMORY
resolver_preload: {json.dumps(accounts)}
"""

    def write_creds(self, path: Path, **claims: Any) -> None:
        """Make a user, and its creds file."""
        user = Pair.make(nkeys.PREFIX_BYTE_USER)
        body = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        jwt = self._account.sign(_claims(user.public, "user", body) | claims)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\nkeep this secret\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


def _claims(subject: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"jti": "x", "iat": 1, "name": kind, "sub": subject, "nats": {**body, "type": kind, "version": 2}}


def _limits(store: int) -> dict[str, Any]:
    every = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    jetstream = ("mem_storage", "disk_storage", "streams", "consumer")
    return {**dict.fromkeys(every, -1), **dict.fromkeys(jetstream, store), "wildcards": True}


# --- PostgreSQL ---

PASSWORD = "p@ss,w/rd?"
_HBA = """\
host all postgres 127.0.0.1/32 trust
host all relay 127.0.0.1/32 scram-sha-256
"""


@contextmanager
def guarded_postgres(directory: Path, tls: ssl.SSLContext) -> Iterator[tuple[PostgresServer, TlsFront]]:
    """A server on which the role ``relay`` needs its password, and the front through which it comes."""
    hba = directory.with_name(f"{directory.name}-hba.conf")
    hba.parent.mkdir(parents=True, exist_ok=True)
    hba.write_text(_HBA)
    hba.chmod(0o644)
    with PostgresServer(directory, settings={"hba_file": str(hba)}) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE relay LOGIN PASSWORD '{PASSWORD}'")
        with TlsFront(server.port, tls, postgres=True) as front:
            yield server, front


def guarded_database(server: PostgresServer, front: TlsFront, name: str, query: str) -> str:
    """Create a database that belongs to ``relay``; returns its URL through the front."""
    with psycopg.connect(server.create_database(name), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} OWNER TO relay")
        connection.execute("ALTER SCHEMA public OWNER TO relay")
    return f"postgresql://relay:{quote(PASSWORD, safe='')}@localhost:{front.port}/{name}?{query}"
