"""Shared by the commands that visit the database of one context or of all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from relay.domain.errors import RelayError, of_context
from relay.settings import load_settings

Answer = TypeVar("Answer")

ContextOption = Annotated[str | None, typer.Option("--context", help="One context only; all if not given.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON list.")]


def visit(context: str | None, ask: Callable[[str], Answer]) -> tuple[dict[str, Answer], bool]:
    """Call ``ask`` with the database address of each context. Return the answers, and whether all did answer.

    A context that fails gets a line on stderr, and the others are still asked. Raises UnknownContext and
    ConfigurationError.
    """
    answers = {}
    urls = _urls(context)
    for name, url in urls.items():
        try:
            answers[name] = ask(url)
        except RelayError as error:
            hint = f" ({error.hint})" if error.hint else ""
            print(f"error {error.code}: context {name}: {error.message}{hint}", file=sys.stderr)
    return answers, len(answers) == len(urls)


def _urls(context: str | None) -> dict[str, str]:
    contexts = load_settings().contexts
    chosen = contexts if context is None else {context: of_context(contexts, context)}
    return {name: found.database_url.get_secret_value() for name, found in chosen.items()}
