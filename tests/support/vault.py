"""A small server with the part of Vault's documented API that Mainspring uses."""

import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROLE, SECRET_ID = "the-role", "the-secret-id"


class Vault:
    """The state of the server. A test can change secrets, leases and tokens."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] | None = {}
        self.deleted = False
        self.lease = 3_600
        self.renewable = True
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.status = 200
        self.address = ""
        #: Answers wait until it is set.
        self.goes_on = threading.Event()
        self.goes_on.set()

    def new_token(self) -> str:
        token = f"hvs.{uuid.uuid4().hex}"
        self.tokens.add(token)
        return token

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        self.asked.append(path.rpartition("/v1/")[2])
        self.goes_on.wait()
        if self.status != 200:
            return self.status, {"errors": ["Vault is sealed"]}
        if (method, path) == ("POST", "/v1/auth/approle/login"):
            if body != {"role_id": ROLE, "secret_id": SECRET_ID}:
                return 400, {"errors": ["invalid role or secret ID"]}
            return 200, {"auth": self._auth(self.new_token())}
        if token not in self.tokens:
            return 403, {"errors": ["permission denied"]}
        if (method, path) == ("GET", "/v1/auth/token/lookup-self"):
            return 200, {"data": {"ttl": self.lease, "renewable": self.renewable}}
        if (method, path) == ("POST", "/v1/auth/token/renew-self"):
            return 200, {"auth": self._auth(token)}
        if (method, path) == ("GET", "/v1/secret/data/mainspring"):
            if self.deleted:
                return 404, {
                    "data": {"data": None, "metadata": {"deletion_time": "2026-11-16T12:00:00Z", "version": 1}}
                }
            if self.fields is None:
                return 404, {"errors": []}
            return 200, {"data": {"data": self.fields, "metadata": {"version": 1}}}
        return 404, {"errors": []}

    def _auth(self, token: str) -> dict[str, Any]:
        return {"client_token": token, "lease_duration": self.lease, "renewable": self.renewable}


@contextmanager
def running(certificates: Path | None = None) -> Iterator[Vault]:
    """Start a Vault; with ``certificates`` it speaks TLS."""
    vault = Vault()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = vault.answer(self.command, self.path, self.headers.get("X-Vault-Token", ""), body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 (as the base class has it)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "certificate.pem", certificates / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    vault.address = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield vault
    finally:
        vault.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
