"""`relay schema`: the JSON Schemas of jetrelay's envelopes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer

from relay import schemas
from relay.cli.options import JsonOption

app = typer.Typer(help="JSON Schemas of envelopes: list, print.", no_args_is_help=True)


@app.command("list")
def list_schemas(as_json: JsonOption = False) -> None:
    """List the schemas of the package, one line for each version."""
    found = [f"{name}.{version}" for name, versions in schemas.names().items() for version in versions]
    print(json.dumps(found) if as_json else "\n".join(found))


def _printing(name: str) -> Callable[..., None]:
    def show(
        version: Annotated[
            str | None, typer.Option("--version", help="The version; the newest if not given.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="The output always is JSON.")] = False,  # noqa: ARG001
    ) -> None:
        print(schemas.schema(name, version), end="")

    return show


for _name in schemas.names():
    app.command(_name, help=f"Print the JSON Schema of {_name}.")(_printing(_name))
