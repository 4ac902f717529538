"""`relay schema`: the JSON Schemas of jetrelay's envelopes, and what a change of a schema means."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from relay import schemas
from relay.cli.operating import JsonOption
from relay.domain.errors import InvalidRequest
from relay.domain.schema_changes import Change, changes

app = typer.Typer(help="JSON Schemas of envelopes: list, print, compare.", no_args_is_help=True)

_WIDTH: Final = 80
_WHERE: Final = "A file, or a schema of `list`."


@app.command("list")
def list_schemas(as_json: JsonOption = False) -> None:
    """List the schemas of the package, one line for each version."""
    found = [f"{name}.{version}" for name, versions in schemas.names().items() for version in versions]
    print(json.dumps(found) if as_json else "\n".join(found))


@app.command("diff")
def diff(
    old: Annotated[str, typer.Argument(help=_WHERE)],
    new: Annotated[str, typer.Argument(help=_WHERE)],
    as_json: JsonOption = False,
) -> None:
    """Say whether a change is minor (status 0) or breaking (status 1). A breaking change needs another version."""
    found = changes(_read(old), _read(new))
    breaking = sum(change.breaking for change in found)
    if as_json:
        print(json.dumps([{"kind": it.kind, "field": it.field, "said": it.said} for it in found], indent=2))
    else:
        print("\n".join([*map(_line, found), _verdict(len(found), breaking)]))
    raise typer.Exit(1 if breaking else 0)


def _line(change: Change) -> str:
    line = f"{change.kind:<9} {change.field or 'the message'}: {change.said}"
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def _verdict(count: int, breaking: int) -> str:
    if breaking:
        return f"breaking: {breaking} of {count}; give the schema another version"
    return f"minor: {count}; the version may stay" if count else "the same"


def _read(where: str) -> Any:
    """The schema in a file or of the package. Raises InvalidRequest."""
    from relay.adapters.jsonschema import check_schema

    try:
        text = Path(where).read_text("utf-8") if Path(where).is_file() else schemas.schema(*_named(where))
        schema = json.loads(text)
        check_schema(schema)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.message if isinstance(error, InvalidRequest) else "cannot be read as JSON"
        hint = error.hint if isinstance(error, InvalidRequest) else None
        raise InvalidRequest(f"{where[:80]}: {reason}", hint=hint) from None
    return schema


def _named(where: str) -> tuple[str, str | None]:
    name, _, version = where.partition(".")
    return name, version or None


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
