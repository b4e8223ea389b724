"""The status page: one file that asks for nothing else, and may not."""

import base64
import hashlib
from pathlib import Path

HTML = Path(__file__).with_name("page.html").read_text("utf-8")


def _hash(tag: str) -> str:
    content = HTML.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser lets the page do: run its own script and style, and ask its own server."""
