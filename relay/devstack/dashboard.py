"""dramatiq-dashboard beside a running system: `relay dev --dashboard`, and `python -m relay.devstack.dashboard`.

It has an environment of its own, because it asks for older releases than the fleet has. It is installed
without its requirements. `relay.devstack.dashboard_app` runs there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from relay.credentials import redis_options
from relay.devstack import private
from relay.devstack.errors import DevStackError, ServerFailed
from relay.domain.errors import RelayError
from relay.settings import Settings, load_settings

DEFAULT_PORT: Final = 8086
#: dramatiq and redis-py have the versions of the fleet, because the fleet writes the keys.
PINS: Final = (
    "dramatiq-dashboard==0.4.0",
    f"dramatiq=={version('dramatiq')}",
    f"redis=={version('redis')}",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "async-timeout==5.0.1",  # redis-py imports it before Python 3.11.3
)
APP: Final = Path(__file__).with_name("dashboard_app.py")
_INSTALL_S: Final = 180
#: Prints the queues that a worker would serve, those of the application's tasks among them.
_DECLARED: Final = """
import json
import relay.actors
from relay.worker import broker
print(json.dumps(sorted(broker.get_declared_queues())))
"""


def prepare(directory: Path) -> Path:
    """Make the environment in a directory, unless it is there; return its Python. Raises DevStackError."""
    python, done = directory / "bin" / "python", directory / "pins"
    wanted = "\n".join((*PINS, sys.version))
    if python.exists() and done.exists() and done.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    private.make_directory(directory.parent)
    _run([sys.executable, "-m", "venv", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *PINS])
    done.write_text(wanted)
    return python


def _run(command: Sequence[str]) -> None:
    """Run a command that installs. Raises DevStackError with the last line it printed."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)  # noqa: S603 - our own
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        output = getattr(error, "stderr", None) or str(error)
        lines = [line for line in str(output).splitlines() if line.strip()]
        raise DevStackError(
            f"dramatiq-dashboard cannot be installed: {lines[-1][:300] if lines else type(error).__name__}",
            hint="pip must reach a package index with " + ", ".join(PINS) + "; or go without --dashboard",
        ) from error


def declared(environment: Mapping[str, str], directory: Path) -> Sequence[str]:
    """The queues that a worker of this environment would serve, from a process that imports the same modules.

    Raises ServerFailed if the modules cannot be imported there.
    """
    found = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", _DECLARED],
        capture_output=True,
        text=True,
        env=dict(environment),
        cwd=directory,
        check=False,
    )
    if found.returncode:
        raise ServerFailed(f"the queues of the workers are unknown: {found.stderr.strip()[-500:]}")
    queues: list[str] = json.loads(found.stdout.splitlines()[-1])
    return queues


def environment(settings: Settings, queues: Sequence[str], port: int) -> dict[str, str]:
    """Return the variables of the dashboard's process. They hold passwords: others can see a command line."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "REDIS_URL": settings.redis_url.get_secret_value(),
        "DASHBOARD_NAMESPACE": settings.redis_namespace,
        "DASHBOARD_QUEUES": " ".join(queues),
        "DASHBOARD_PORT": str(port),
        "DASHBOARD_ACCESS": json.dumps(redis_options(settings)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }


def main() -> None:
    """Serve the dashboard on the system that the environment and relay.toml describe, until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m relay.devstack.dashboard", description=main.__doc__)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="at 127.0.0.1 (%(default)s)")
    parser.add_argument("--directory", type=Path, default=Path(".relay/dashboard"), help="the environment")
    options = parser.parse_args()
    try:
        settings = load_settings()
        python = prepare(options.directory.absolute())
        told = environment(settings, declared(os.environ, Path.cwd()), options.port)
    except RelayError as error:
        sys.stderr.write(f"error {error}\n")
        sys.exit(1)
    os.execve(python, [str(python), str(APP)], told)  # noqa: S606 - our own


if __name__ == "__main__":
    main()
