"""What a session is when it is lent to a function, and how it becomes so again for the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from psycopg.adapt import AdaptersMap

from relay.adapters.postgres.pipeline import Command
from relay.adapters.postgres.pool import prepares
from relay.adapters.postgres.row_texts import teach
from relay.adapters.postgres.sql import statement

if TYPE_CHECKING:
    from relay.adapters.postgres.lazy_transactions import Lazy

#: What undoes the settings and objects of a function, within its transaction or after it.
_UNDOING: Final = ("reset_settings", "close_cursors", "drop_temporary")
#: Asks how far the database keeps transactions apart, if they do not say it.
ISOLATION: Final[Command] = ("session/isolation", {})
#: How a transaction of a function begins, by what its database says about isolation.
BEGINNINGS: Final[Mapping[str, Command]] = {
    "repeatable read": ("session/begin_repeatable_read", {}),
    "serializable": ("session/begin_serializable", {}),
}


def milliseconds(limit: timedelta) -> str:
    """Return a limit as PostgreSQL's settings take it."""
    return str(max(1, limit // timedelta(milliseconds=1)))


def lent(limit: timedelta | None) -> Command:
    """Return the statement that makes a session ready for functions. ``limit``: of their transactions."""
    return "session/lent", {"limit": "0" if limit is None else milliseconds(limit)}


def cleaning(limit: timedelta | None) -> Sequence[Command]:
    """Return the statements that make a session as it was lent, after the transaction of a function.

    The last but one tells whether there is `CLEANING_MORE` to do. After most functions there is nothing of that.
    """
    return [("session/reset_settings", {}), ("session/unlock", {}), lent(limit)]


CLEANING_MORE: Final[Sequence[Command]] = [
    (f"session/{name}", {}) for name in ("unlisten", "close_cursors", "drop_temporary")
]

#: The same behind a pooler, in the round trip of the commit: then others get the session. It may have settings of
#: the pooler's own, so settings stay as they are.
OF_A_POOLER: Final[Sequence[Command]] = [
    (f"session/{name}", {}) for name in ("unlock", "unlisten", "close_cursors", "drop_temporary")
]


def resetting(driver: Lazy, limit: timedelta) -> bytes:
    """Return the text that does so within a transaction; nothing behind a pooler.

    Locks of the session are kept: they guard what the transaction has written.
    """
    if not prepares(driver):
        return b""
    name, values = lent(limit)
    undone = [statement(f"session/{name}") for name in _UNDOING]
    return "; ".join([*undone, statement(name).replace("%(limit)s", repr(values["limit"]))]).encode()


class _Adapters(AdaptersMap):
    """The adapters of a lent connection. ``changed``: a function has registered some of its own."""

    changed = False

    def register_dumper(self, *arguments: Any) -> None:
        """As psycopg's."""
        self.changed = True
        super().register_dumper(*arguments)

    def register_loader(self, *arguments: Any) -> None:
        """As psycopg's."""
        self.changed = True
        super().register_loader(*arguments)


class Usual:
    """What the connection object is when it is lent. A function may change any of it."""

    _PARTS: Final = (
        *("row_factory", "cursor_factory", "server_cursor_factory"),
        *("prepare_threshold", "prepared_max"),
    )

    def __init__(self, driver: Lazy) -> None:
        self._parts = {name: getattr(driver, name) for name in self._PARTS}
        teach(driver)  # for the events of functions
        self._adapters = AdaptersMap(driver.adapters)
        driver.listeners.clear()
        self._renew(driver)

    def restore(self, driver: Lazy) -> None:
        """Make the connection as it was."""
        for name, value in self._parts.items():
            setattr(driver, name, value)
        for remove, listener in driver.listeners:
            with suppress(ValueError):  # it has removed itself
                remove(listener)
        driver.listeners.clear()
        if driver.adapters is not self._lent or self._lent.changed:
            self._renew(driver)

    def _renew(self, driver: Lazy) -> None:
        self._lent = _Adapters(self._adapters)
        driver._adapters = self._lent  # noqa: SLF001 - the driver offers no other way
