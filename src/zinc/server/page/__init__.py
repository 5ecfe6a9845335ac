"""The chat page: static files, read once and served unchanged.

There is no build step and there are no external resources, so the page works offline. It shows
untrusted text of models. Besides the Markdown renderer, the Content-Security-Policy protects
against it: no inline script, no eval, no text that becomes markup (Trusted Types), and no request
to another host, not even for an image.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zinc.core.dataclass import dataclass

PREFIX = "/page/"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Cache-Control": "no-cache",  # revalidated each time by its ETag
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    body: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """Return the file, or status 304 if the browser has it already."""
        headers = {**HEADERS, "ETag": self.etag}
        known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known:
            return Response(None, 304, headers)
        return Response(self.body, 200, headers, media_type=self.media_type)


def assets() -> dict[str, Asset]:
    """Return the files of the page by URL path; `index.html` is "/"."""
    found: dict[str, Asset] = {}
    _collect(files(__package__), "", found)
    found["/"] = found.pop(f"{PREFIX}index.html")
    return found


def routes() -> list[Route]:
    """Return a route for each file of the page."""
    return [Route(path, asset.response, methods=["GET"]) for path, asset in assets().items()]


def is_public(path: str) -> bool:
    """Return whether a URL path belongs to the page, which needs no API key."""
    return path == "/" or path.startswith(PREFIX)


def _collect(folder: Traversable, prefix: str, found: dict[str, Asset]) -> None:
    for entry in folder.iterdir():
        name = prefix + entry.name
        suffix = entry.name[entry.name.rfind(".") :]
        if entry.is_dir() and entry.name != "__pycache__":
            _collect(entry, f"{name}/", found)
        elif suffix in MEDIA_TYPES:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[PREFIX + name] = Asset(body, MEDIA_TYPES[suffix], etag)
