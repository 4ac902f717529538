"""What a hostile or careless producer may put into a message."""

from __future__ import annotations

from typing import Final

_ID: Final = "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
#: It stands in messages that are refused. No reason may repeat it.
MARKER: Final = "s3cret"
#: Values of other types than text.
NO_TEXT: Final[tuple[object, ...]] = (None, True, 0, -1, 1.5, 10**30, [], {}, [[[]]], {MARKER: [MARKER]})
#: Values of headers and fields.
TEXTS: Final = (
    "", " ", "0", "1", "-1", "1.0", "٣", "9" * 5_000, "null", "a.b", "a b", "*", ">", "\x00", "%", "%00", "%ff",
    "\ud800", "🎷", '"', '"\\', "\r\nNats-Rollup: all", f"urn:uuid:{_ID}", f"{{{_ID}}}", f"{_ID}.0", f"{_ID}.",
    f"{_ID}.99999999999", "0" * 32, _ID.upper(), "evt_01HQGX8K9JNP", "x" * 10_240, "2025-12-28", "24:00",
    "2025-12-28T22:00:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", MARKER,
)  # fmt: skip
#: Whole bodies.
BODIES: Final = (
    b"", b"\x00", b"\xff\xfe\x00", b"\xc3\x28", b"{", b"null", b"7", b'"text"', b"[]", b"{}", b"NaN", b"-Infinity",
    b"1e400", b"9" * 5_000, b"[" * 100_000, b'{"a":' * 100_000, b"[" * 150 + b"]" * 150, b'{"\\ud800": 1}',
    b'{"payload": NaN}', b"[" + b"0," * 100_000 + b"0]", b"\xef\xbb\xbf{}", MARKER.encode(),
)  # fmt: skip
