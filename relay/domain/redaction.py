"""Redaction: takes values out of JSON, texts and bodies, and leaves all else as it is, byte by byte.

A value counts where it stands as a whole: ``ann@example.org`` is not in ``joann@example.org``. It is found as it
is, as JSON escapes it, in JSON inside a string of JSON, and in strings of base64 or of hexadecimal digits.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from relay.domain.errors import InvalidRequest

#: What stands for a value that was redacted. A number becomes null.
REDACTED: Final = "(redacted)"
MIN_CHARS: Final = 4
MAX_BYTES: Final = 500
MAX_VALUES: Final = 20
#: How deep JSON in JSON may be.
_DEEP: Final = 3
#: Where an envelope, a dead letter or an archived row holds what paths are relative to.
_INSIDE: Final = ("payload", "data", "original", "body")
#: What they say in the system's own words.
_SYSTEM: Final = frozenset(
    (
        *("event_type", "type", "status", "queue", "subscription", "stream", "published_stream", "ack_subject"),
        *("dead_letter_class", "class", "waits_for", "handler", "original_encoding", "specversion"),
    )
)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}")
_HEX: Final = re.compile(r"\\x(?:[0-9a-f]{2})+")
_NAME: Final = re.compile(r"(?:\*|[^.\x00]{1,200})(?:\.(?:\*|[^.\x00]{1,200})){0,19}")


@dataclass(frozen=True, slots=True)
class _Frame:
    """An object or list that is open. ``at``: the member that is read, as a list of one."""

    is_list: bool
    at: list[Any]


@dataclass(frozen=True)
class Redaction:
    """What is to be taken out: each of these values, wherever it stands.

    ``paths``: of payloads only these fields, such as ``customer.email`` or ``people.*.email``, and what is in
    them; all else that is text is redacted all the same, such as errors. ``type``: of events and tasks only this
    type.
    Raises InvalidRequest.
    """

    values: tuple[str, ...]
    paths: tuple[str, ...] = ()
    type: str | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.values) <= MAX_VALUES:
            raise InvalidRequest(f"needs 1 to {MAX_VALUES} values", field="--value")
        for value in self.values:
            if len(value.strip()) < MIN_CHARS or len(value.encode(errors="replace")) > MAX_BYTES:
                raise InvalidRequest(f"must have {MIN_CHARS} characters to {MAX_BYTES} bytes", field="--value")
            if not value.isprintable() or value in REDACTED:
                raise InvalidRequest("is no printable text that can be looked for", field="--value")
        for path in self.paths:
            if not _NAME.fullmatch(path):
                raise InvalidRequest(f"{path[:80]!r} is not a field; write customer.email", field="--path")

    # --- where a value may be, to look there more closely ---

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Texts of which one is in every text, JSON or not, that has a value."""
        written = [form for value in self.values for form in (value, *_escaped(value))]
        encoded = [core for it in dict.fromkeys(written) for core in _cores(it.encode())]
        return tuple(dict.fromkeys([*self._forms, *encoded]))

    @cached_property
    def hexadecimal(self) -> tuple[str, ...]:
        """The same for bodies whose bytes are hexadecimal digits."""
        return tuple(it.encode().hex() for it in self.texts)

    @cached_property
    def marks(self) -> tuple[bytes, ...]:
        """`texts` and `hexadecimal` as bytes."""
        return tuple(it.encode() for it in (*self.texts, *self.hexadecimal))

    def may_be_in(self, data: bytes) -> bool:
        """Whether a value may be in bytes: if not, it is not. Cheap."""
        return any(it in data for it in self.marks)

    @cached_property
    def _forms(self) -> tuple[str, ...]:
        """The values as they are, and as JSON escapes them, also within JSON in JSON."""
        found = list(self.values)
        for _ in range(_DEEP):
            found = list(dict.fromkeys([*found, *(form for it in found for form in _escaped(it))]))
        return tuple(found)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_whole, sorted(self._forms, key=len, reverse=True))))

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(it for it in self.values if it.isdigit() and (len(it) >= 6 or self.paths))

    @cached_property
    def _names(self) -> Sequence[Sequence[str]]:
        return [it.split(".") for it in self.paths]

    # --- taking it out ---

    def text(self, text: str) -> str:
        """A text without the values."""
        return self._pattern.sub(REDACTED, text)

    def payload(self, text: str) -> str:
        """JSON text of a payload: only in the wanted fields, if there are any."""
        return self._json(text, inside=False)

    def anything(self, text: str) -> str:
        """JSON or any other text that may hold a payload: an envelope, a dead letter, an archived row."""
        return self._json(text, inside=_has_inside(text)) if _looks_like_json(text) else self.text(text)

    def free(self, text: str) -> str:
        """JSON text of which no part is a payload."""
        return self._json(text, inside=True, free=True)

    def body(self, body: bytes) -> bytes:
        """The body of a message."""
        if not self.may_be_in(body):
            return body
        try:
            text = body.decode()
        except UnicodeDecodeError:
            for it in self._forms:
                body = body.replace(it.encode(), REDACTED.encode())
            return body
        return self.anything(text).encode()

    def _json(self, text: str, *, inside: bool, free: bool = False) -> str:
        """``inside``: payloads are in members of the outermost object. ``free``: there are none."""
        if not any(it in text for it in (*self.texts, *self.hexadecimal)):
            return text
        parts: list[str] = []
        kept = 0
        for begin, end, new in self._changes(text, inside=inside, free=free):
            parts += text[kept:begin], new
            kept = end
        return "".join([*parts, text[kept:]])

    def _changes(self, text: str, *, inside: bool, free: bool) -> Iterator[tuple[int, int, str]]:
        """The parts of JSON text to replace, and by what."""
        for token, frames, is_key in _values(text):
            new: str | None = None
            if token[0][0] == '"':
                new = self._string(token[0], frames, is_key=is_key, inside=inside, free=free)
            elif token[0] in self._numbers and self._wanted(frames, inside=inside, free=free):
                new = "null"
            if new is not None:
                yield token.start(), token.end(), new

    def _string(
        self, word: str, frames: Sequence[_Frame], *, is_key: bool, inside: bool, free: bool
    ) -> str | None:
        """A string of JSON without the values; None if it has none of them."""
        content = _read(word)
        if not isinstance(content, str):
            return None
        found = content
        if is_key:
            if not self.paths or free:
                found = self.text(content)
        else:
            found = self._nested(content)
            if self._wanted(frames, inside=inside, free=free):
                found = self.text(found)
        return None if found == content else json.dumps(found, ensure_ascii=word.isascii())

    def _nested(self, content: str) -> str:
        """What is JSON, base64 or hexadecimal digits within a string."""
        if _looks_like_json(content):
            return self.anything(content)
        if _HEX.fullmatch(content):
            return "\\x" + self.body(bytes.fromhex(content[2:])).hex()
        if _BASE64.fullmatch(content) and any(it in content for it in self.texts):
            try:
                data = base64.b64decode(content, validate=True)
            except (ValueError, binascii.Error):
                return content
            new = self.body(data)
            return content if new == data else base64.b64encode(new).decode()
        return content

    def _wanted(self, frames: Sequence[_Frame], *, inside: bool, free: bool) -> bool:
        """Whether the value that is read is in a wanted field, or in no payload."""
        path = [str(it.at[0]) for it in frames]
        if inside and path[:1] and path[0] in _SYSTEM:
            return False
        if free or not self.paths:
            return True
        if inside and path[:1] and path[0] not in _INSIDE:
            return True
        begins = [path, path[1:]] if inside else [path]
        return any(
            len(names) <= len(it) and all(a in ("*", b) for a, b in zip(names, it, strict=False))
            for names in self._names
            for it in begins
        )


def _values(text: str) -> Iterator[tuple[re.Match[str], Sequence[_Frame], bool]]:
    """The strings and numbers of JSON text, in which objects and lists they are, and whether they are names."""
    frames: list[_Frame] = []
    is_key = False
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "{" | "[" as word:
                frames.append(_Frame(word == "[", [0 if word == "[" else None]))
                is_key = word == "{"
            case "}" | "]":
                del frames[-1:]
                is_key = False
            case ",":
                is_key = bool(frames) and not frames[-1].is_list
                if frames and frames[-1].is_list:
                    frames[-1].at[0] += 1
            case ":":
                is_key = False
            case word:
                if is_key:
                    frames[-1].at[0] = _read(word)
                yield token, frames, is_key


def _escaped(value: str) -> list[str]:
    """A value as JSON may write it, without its quotes."""
    ascii_ = json.dumps(value)[1:-1]
    upper = re.sub(r"\\u([0-9a-f]{4})", lambda it: "\\u" + it[1].upper(), ascii_)
    found = [json.dumps(value, ensure_ascii=False)[1:-1], ascii_, upper]
    slashed = [re.sub(r"(?<!\\)/", r"\/", it) for it in found if "/" in it]
    return list(dict.fromkeys([*found, *slashed]))


def _cores(data: bytes) -> list[str]:
    """What base64 of any bytes with these has, wherever they begin."""
    found = []
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        whole = text[: (before + len(data)) * 8 // 6]
        core = whole[-(-before * 8 // 6) :]
        if len(core) >= MIN_CHARS:
            found.append(core)
    return found


def _whole(form: str) -> str:
    """A pattern for a text that is no part of a longer word."""
    begin = r"(?:(?<![\w.+-])|(?<=\\[nrt]))" if form[0].isalnum() else ""
    end = r"(?![\w]|[.-]\w)" if form[-1].isalnum() else ""
    return begin + re.escape(form) + end


def _looks_like_json(text: str) -> bool:
    """Whether a text is JSON of an object or a list."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _has_inside(text: str) -> bool:
    found = json.loads(text, parse_int=str, parse_float=str)
    return isinstance(found, dict) and not found.keys().isdisjoint(_INSIDE)


def _read(word: str) -> Any:
    try:
        return json.loads(word, strict=False)
    except ValueError:
        return None
