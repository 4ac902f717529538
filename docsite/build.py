"""``python -m docsite.build``: the site of ``docs/``, in ``build/site``. Its pages open without the internet.

Status 1 if a page names a page or an anchor that does not exist, or draws a picture that Mermaid cannot read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mermaidx
import quickjs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
#: The wheel brings along Mermaid as browsers load it, and what it needs of a browser to read a diagram.
ASSETS = Path(mermaidx.__file__).parent / "assets"
MERMAID = ASSETS / "mermaid.js"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What a browser would fetch from elsewhere while it opens a page. Links are for readers.
FETCHED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?https?:[^>]*>|<link\b[^>]*\bhref=\"?https?:[^>]*>")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    """Build, then check: the first complaint of each kind is enough to fail."""
    pages = sorted(DOCS.rglob("*.md"))
    complaints = [*refused(pages), *built()]
    if not complaints:
        carry_mermaid()
        complaints = list(fetched())
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if not complaints:
        print(f"{len(pages)} pages in {SITE.relative_to(ROOT)}")
    return 1 if complaints else 0


def refused(pages: list[Path]) -> Iterator[str]:
    """Say which pictures Mermaid cannot read: a browser shows an error in their place."""
    engine = quickjs.Context()
    for script in (ASSETS / "dom_shim.js", MERMAID):
        engine.eval(script.read_text())
    for page in pages:
        for diagram in DIAGRAM.findall(page.read_text()):
            if said := parsed(engine, diagram):
                yield f"{page.relative_to(ROOT)}: {said.partition('Expecting')[0]}"


def parsed(engine: quickjs.Context, diagram: str) -> str:
    """Have Mermaid read a diagram. Return what it says against it, or nothing."""
    engine.eval("globalThis.said = 'Mermaid did not answer'")
    engine.eval(f"mermaid.parse({json.dumps(diagram)}).then(() => {{ said = '' }}, (e) => {{ said = String(e) }})")
    while engine.execute_pending_job():
        pass
    return str(engine.eval("said"))


def built() -> Iterator[str]:
    """Run zensical, which checks links between pages and to anchors."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        yield COLOUR.sub("", done.stdout + done.stderr).partition("Traceback (most recent")[0]


def carry_mermaid() -> None:
    """Give each page with a picture its own Mermaid: otherwise the theme loads one from a public host."""
    (SITE / "assets" / "javascripts" / "mermaid.js").write_bytes(MERMAID.read_bytes())
    for page in SITE.rglob("*.html"):
        text = page.read_text()
        if '<pre class="mermaid">' in text:
            up = "../" * (len(page.relative_to(SITE).parts) - 1)
            tag = f'<script src="{up}assets/javascripts/mermaid.js"></script>'
            # The theme draws them, in the colours of the page.
            still = "<script>mermaid.initialize({ startOnLoad: false })</script>"
            page.write_text(text.replace("</head>", f"{tag}\n{still}\n</head>", 1))


def fetched() -> Iterator[str]:
    """Say which pages would not open without the internet."""
    for page in sorted(SITE.rglob("*.html")):
        yield from (f"{page.relative_to(SITE)}: {tag}" for tag in FETCHED.findall(page.read_text()))


if __name__ == "__main__":
    sys.exit(main())
