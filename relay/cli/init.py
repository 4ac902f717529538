"""`relay init`: a small project that runs with `relay dev` at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from relay.cli.options import print_json
from relay.domain.errors import ConfigurationError, InvalidRequest

#: In the wheel the project is beside this file; in a checkout it is an example.
PLACES: Final = (Path(__file__).with_name("starter"), Path(__file__).parents[2] / "examples" / "starter")
#: Files that have another name here, because their own name would have an effect.
_RENAMED: Final = {"gitignore": ".gitignore"}
_NEXT: Final = """
Next:{enter}
  relay dev                        # servers, scheduler and workers, until Ctrl-C
and in a second terminal:{enter}
  . .relay/environment             # where the servers of relay dev are
  python producer.py "a book" 12   # an order and its event
  relay tasks list --all           # the invoice that a handler has scheduled"""


def init(
    directory: Annotated[Path, typer.Argument(help="Where; it is created if missing.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Write a small project: a producer, handlers in Python and by HTTP, a task, relay.toml, docker-compose.yml.

    It runs with `relay dev` at once. No file is replaced.
    """
    files = project()
    if taken := [name for name in files if (directory / name).exists()]:
        raise InvalidRequest(
            f"there is {', '.join(taken)} already",
            field="DIRECTORY",
            hint="choose a new directory: relay init shop",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, "utf-8")
    if as_json:
        print_json({"directory": str(directory.absolute()), "files": [*files]})
        return
    print(f"Written to {directory.absolute()}: {', '.join(files)}")
    here = directory.absolute() == Path.cwd()
    print(_NEXT.format(enter="" if here else f"\n  cd {shlex.quote(str(directory))}"))


def project() -> dict[str, str]:
    """Return the text of each file of the project. Raises ConfigurationError where they are not installed."""
    place = next((it for it in PLACES if (it / "relay.toml").is_file()), None)
    if place is None:
        raise ConfigurationError("the files of the project are not installed", hint="install jetrelay again")
    return {
        _RENAMED.get(it.name, it.name): it.read_text("utf-8") for it in sorted(place.iterdir()) if it.is_file()
    }
