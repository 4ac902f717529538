"""docs/reference/cli.md: what holds for every command, and a line for each, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from relay.cli import create_app

HEAD = """\
# The command `relay`

`relay COMMAND --help` has all options. This page has what holds for every command, and a line for each.

## Where it looks

Every command reads `relay.toml` (`RELAY_CONFIG` names another file) and the environment. `relay config` shows each
value that holds, and its source. Without `--context` a list shows all contexts.

## How it ends

| Status | Means |
|---|---|
| 0 | done; a list that is empty too |
| 1 | an error, or something is wrong, refused or could not be read |
| 2 | the command line itself is wrong |
| 130 | Ctrl-C |

An error is one line on standard error: `error CODE: message (what to do)`. The [codes](errors.md) are stable.
Results go to standard output.

## In scripts

- **`--json`** prints one JSON document: a list for rows, an object otherwise. Names of fields and codes are
  stable, and new fields may come. If a database does not answer, a list has an entry `{"context": …, "error":
  {…}}` for it, and the status is 1. An error of the command stays a line on standard error.
- **Commands that list, show or examine change nothing.**
- An action on many rows first counts them and asks; `--yes` does not ask. If a filter finds more than
  `--limit`, nothing is done. `--note` and `--actor` go into the audit log. Replays and the archive have
  `--dry-run`, which counts.
- In a terminal, lists are tables or records, whichever fits. In a pipe or file they are one row a line.
  `--columns` chooses columns, `--wide` shows all. Progress goes to standard error, and only to a terminal.
  `NO_COLOR` is honoured.
- `--since` and `--until` take a duration ago (`3h`, `7d`) or a time; without a zone it is UTC.

## Recipes

```sh
relay doctor                                               # what is wrong, and what to change
relay backlog --json | jq                                  # what waits, for a script
relay explain 019c0b7e-52c3-7a41-9d1c-5a0e3f1f2b77         # what became of a message, from any id of it
relay dlq list --reason timeout --since 2h                 # what died, and why
relay dlq requeue --reason timeout --since 2h              # once the cause is mended; asks first
relay inbox list --status dead                             # what the inbox holds and no handler gets
relay outbox list --status dead                            # what could not be published
relay tasks list --status failed
relay config                                               # which settings hold, and from where
```

More of them: [runbook](../how-to/runbook.md).

## All commands
"""
#: In a checkout only.
ONLY_IN_A_CHECKOUT = "chaos"


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(create_app())
    first: dict[str, str] = {}
    rows = "\n".join(f"| `{usage}` | {_once(usage, meaning, first)} |" for usage, meaning in _rows(root, "relay"))
    return f"{HEAD}\n| Command | Does |\n|---|---|\n{rows}\n"


def _rows(group: Any, path: str) -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        place = f"{path} {name}"
        if command.hidden:
            continue
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield _usage(command, place), _first_sentence(command.help) + _where(name)
        if hasattr(command, "commands"):
            yield from _rows(command, place)


def _once(usage: str, meaning: str, first: dict[str, str]) -> str:
    """What a command does; for another that does the same, the name of the first."""
    name = re.sub(r" \[?[A-Z]+.*", "", usage)
    other = first.setdefault(meaning, name)
    return meaning if other == name else f"As `{other}`."


def _usage(command: Any, place: str) -> str:
    """How it is called, with its arguments and without its options."""
    arguments = [it for it in command.params if not it.opts[0].startswith("-")]
    words = [it.name.strip("_").upper() + ("…" if it.nargs == -1 else "") for it in arguments]
    return " ".join(
        [place, *(word if it.required else f"[{word}]" for it, word in zip(arguments, words, strict=True))]
    )


def _where(name: str) -> str:
    return " In a checkout only." if name == ONLY_IN_A_CHECKOUT else ""


def _first_sentence(help_text: str | None) -> str:
    text = " ".join((help_text or "").replace("``", "`").split())
    end = text.find(". ")
    sentence = text if end < 0 else text[: end + 1]
    return sentence.replace("|", "\\|").replace("<", "&lt;")
