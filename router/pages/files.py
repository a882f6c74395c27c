"""The page's own files, which load nothing from elsewhere."""

from collections.abc import Mapping
from importlib.resources import files

from aiohttp import web

from warmpath.router.pages.listener import Page

KINDS = {
    "index.html": "text/html",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    **{
        f"{name}.js": "text/javascript"
        for name in ("draw", "explain", "findings", "overview", "painted", "page", "pod")
    },
}
"""The files in `assets/`, with their media types."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def file_pages() -> Mapping[str, Page]:
    """Return the pages of the files by path; `index.html` is `/`, the others are in `/live/`."""
    return {
        "/" if name == "index.html" else f"/live/{name}": _page(name, kind)
        for name, kind in KINDS.items()
    }


def _page(name: str, kind: str) -> Page:
    content = files(__package__).joinpath("assets", name).read_bytes()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)

    return answer
