"""Sends replies to browsers, with security headers and compression."""

import gzip

from mainspring.http.app import RawHeaders
from mainspring.http.asgi_types import Send
from mainspring.http.requests import Request
from mainspring.web.static_files import static_files

#: Compressing shorter replies is not worth it.
_COMPRESSED_FROM = 1_024
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


async def reply_static(path: str, request: Request, send: Send) -> None:
    _, _, rest = path.partition("/")
    version, _, name = rest.partition("/")
    known = static_files()
    found = known.files.get(name)
    if found is None or version != known.version:
        await reply_with(request, send, 404, b"not found", {"content-type": "text/plain"})
        return
    headers = {"cache-control": "public, max-age=31536000, immutable", "content-type": found.kind}
    headers = {**HEADERS, **headers, "vary": "accept-encoding"}
    data = found.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        data = found.compressed
        headers["content-encoding"] = "gzip"
    await _reply_bytes(request, send, 200, data, headers)


async def reply_with(
    request: Request, send: Send, status: int, data: bytes, more: dict[str, str] | None = None
) -> None:
    headers = {"content-type": "text/html; charset=utf-8", **HEADERS, **(more or {}), "vary": "accept-encoding"}
    if len(data) >= _COMPRESSED_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        data = gzip.compress(data, compresslevel=5)
        headers["content-encoding"] = "gzip"
    await _reply_bytes(request, send, status, data, headers)


async def _reply_bytes(request: Request, send: Send, status: int, data: bytes, headers: dict[str, str]) -> None:
    raw = raw_headers({**headers, "content-length": str(len(data))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    body = b"" if request.scope["method"] == "HEAD" else data
    await send({"type": "http.response.body", "body": body, "more_body": False})


def raw_headers(headers: dict[str, str]) -> RawHeaders:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
