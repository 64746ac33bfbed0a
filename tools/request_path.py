"""``python -m tools.request_path``: lists the functions that ``POST /v1/jobs`` calls before the store has the job.

The request is answered in this process, by the API on a SQLite file in a temporary folder. Functions of generators and
comprehensions are left out, and so is what only some requests call, such as the renewal of a cache.
``PYTHONPATH=CHECKOUT/src python tools/request_path.py`` measures another checkout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import mainspring
from mainspring.asgi import Mounted

_PACKAGE = f"{Path(mainspring.__file__).parent}/"
_STORES = ("stores/", "adapters/store/")
_BODY = json.dumps({"task": "greet", "payload": {"user": 1}}).encode()
_ROUNDS = 8
#: The first requests also fill caches.
_WARM = 2


def main() -> int:
    path = asyncio.run(trace_submit())
    for file, name in path:
        print(f"{file}  {name}")
    print(f"{len(path)} functions in {len({file for file, _ in path})} files")
    return 0


async def trace_submit() -> list[tuple[str, str]]:
    """Return the file and the name of each function, in the order of the first call."""
    with tempfile.TemporaryDirectory() as folder:
        async with Mounted({"store": f"{folder}/trace.db"}, open_to_all=True) as application:
            rounds = [await _trace_one(application) for _ in range(_ROUNDS)]
    always = set.intersection(*(set(calls) for calls in rounds[_WARM:]))
    return [call for call in rounds[-1] if call in always]


async def _trace_one(application: Mounted) -> dict[tuple[str, str], None]:
    calls: dict[tuple[str, str], None] = {}
    arrived = False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal arrived
        code = frame.f_code
        file = code.co_filename.removeprefix(_PACKAGE)
        if event != "call" or arrived or file == code.co_filename or file == "asgi.py":
            return
        arrived = file.startswith(_STORES) and code.co_name == "submit"
        if not arrived and not code.co_name.startswith("<"):
            calls[file, code.co_qualname] = None

    sys.setprofile(note)
    try:
        status = await _post(application)
    finally:
        sys.setprofile(None)
    assert status == 201
    assert arrived
    return calls


async def _post(application: Mounted) -> int:
    sent: list[Any] = []
    parts: list[Any] = [{"type": "http.request", "body": _BODY, "more_body": False}]

    async def receive() -> Any:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/jobs",
        "raw_path": b"/v1/jobs",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await application(scope, receive, send)
    return int(sent[0]["status"])


if __name__ == "__main__":
    sys.exit(main())
