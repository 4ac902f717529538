"""`relay schema`: the JSON Schemas of jetrelay's envelopes, and those of an application's events."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from relay import schemas
from relay.cli.options import JsonOption, print_json
from relay.domain.errors import ConfigurationError
from relay.domain.evolution import Change, Weight

if TYPE_CHECKING:
    from relay.commands.catalogue import Declared

app = typer.Typer(
    help="JSON Schemas of envelopes, and of your events: print, export, check.", no_args_is_help=True
)

_ModulesArgument = Annotated[
    list[str] | None, typer.Argument(help="Modules with the classes. By default those that relay.toml names.")
]
_FolderOption = Annotated[Path, typer.Option("--catalogue", help="The folder of the catalogue.")]
_FOLDER: Final = Path("event-schemas")
_JsonObject = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]


@app.command("list")
def list_schemas(as_json: JsonOption = False) -> None:
    """List the schemas of the package, one line for each version."""
    found = [f"{name}.{version}" for name, versions in schemas.names().items() for version in versions]
    print(json.dumps(found) if as_json else "\n".join(found))


@app.command()
def export(
    modules: _ModulesArgument = None,
    folder: _FolderOption = _FOLDER,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="A version, such as order_placed.v1, that nobody has: break or drop it."),
    ] = None,
    as_json: _JsonObject = False,
) -> None:
    """Write the JSON Schema of each event and command class into a folder, for version control.

    What the folder holds counts as published: a change that breaks it is refused.
    """
    from relay.commands.catalogue import Catalogue

    written = Catalogue(folder).write(_declared(modules), accept or ())
    if as_json:
        print_json({"catalogue": str(folder), "written": written})
    else:
        print("\n".join([*written, f"{len(written)} files changed in {folder}."]))


@app.command()
def check(
    modules: _ModulesArgument = None,
    folder: _FolderOption = _FOLDER,
    strict: Annotated[bool, typer.Option("--strict", help="Status 1 also for warnings.")] = False,
    as_json: _JsonObject = False,
) -> None:
    """Compare the event and command classes with the catalogue. Status 1 if a published version breaks.

    An error breaks new readers, or everybody. A warning breaks old readers: deploy the readers first.
    """
    from relay.commands.catalogue import Catalogue

    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no catalogue {folder}", field="--catalogue", hint="relay schema export"
        )
    order = list(Weight)
    found = sorted(Catalogue(folder).changes(_declared(modules)), key=lambda it: order.index(it.weight))
    if as_json:
        changes = [{**asdict(it), "version": str(it.version)} for it in found]
        print_json({"catalogue": str(folder), "changes": changes})
    else:
        print("\n".join([*map(_line, found), _summary(found)]))
    bad = {Weight.ERROR, Weight.WARNING} if strict else {Weight.ERROR}
    if any(it.weight in bad for it in found):
        raise typer.Exit(1)


def _line(it: Change) -> str:
    return f"{it.weight:<8} {it.code}  {it.version}{' ' if it.path else ''}{it.path}: {it.text}"


def _summary(found: list[Change]) -> str:
    counts = Counter(it.weight for it in found)
    return ", ".join(f"{counts[it]} {it}s" for it in Weight if counts[it]) or "nothing has changed"


def _declared(modules: list[str] | None) -> Declared:
    """The classes of these modules, or of those that relay.toml names. Raises ConfigurationError."""
    from relay.commands.catalogue import declared

    sys.path.append(str(Path.cwd()))  # as workers do
    for module in modules or _configured():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise ConfigurationError(f"there is no module {module!r}", hint="is it on PYTHONPATH?") from None
    found = declared()
    if not found.schemas:
        raise ConfigurationError(
            "no class is registered with @event or @command", hint="name the module: relay schema export MODULE"
        )
    return found


def _configured() -> Iterator[str]:
    from relay.settings import load_settings

    settings = load_settings()
    yield from settings.user_modules
    for context in settings.contexts.values():
        if context.queries is not None:
            yield context.queries.module
        yield from (it.python_module for it in context.subscriptions.values() if it.python_module is not None)


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
