"""An HTTP server in place of Slack, PagerDuty and webhooks, which keeps its requests; and a mail server."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.certificates import make_certificate
from tests.support.processes import free_port


class Receiver:
    """``got``: (path, headers by their names in lower case, body as JSON), in order."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.bodies: list[bytes] = []
        #: Status codes of the next answers; 200 after them.
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status == 200:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    receiver.got.append((self.path, headers, json.loads(body)))
                    receiver.bodies.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def at(self, path: str) -> list[Any]:
        return [body for where, _, body in self.got if where == path]


@contextmanager
def receiving() -> Iterator[Receiver]:
    made = Receiver()
    thread = Thread(target=made.server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


class Mailbox:
    """Messages and logins that a mail server has received."""

    def __init__(self) -> None:
        self.letters: list[tuple[list[str], EmailMessage]] = []
        self.logins: list[tuple[str, str]] = []
        self.secret: list[bool] = []
        #: Answers to the next messages; accepted after them.
        self.answers: list[str] = []
        #: Addresses that are rejected temporarily, and the rejections so far.
        self.greylisted: set[str] = set()
        self.refused: list[str] = []
        #: The answer to QUIT.
        self.farewell = "221 Bye"
        self.port = free_port()

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        return self.farewell

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answers:
            return self.answers.pop(0)
        content = envelope.content
        assert isinstance(content, bytes)
        message = message_from_bytes(content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        self.letters.append((list(envelope.rcpt_tos), message))
        assert server.transport is not None
        self.secret.append(server.transport.get_extra_info("ssl_object") is not None)
        return "250 taken"

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody@"):
            return "550 no such user"
        if address in self.greylisted:
            self.refused.append(address)
            return "450 come back later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    def check(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"a password", handled=False)


@contextmanager
def mail_server(folder: Path, tls: str = "none") -> Iterator[Mailbox]:
    """Start a mail server with ``tls``: ``starttls`` (required), ``tls`` from the first byte, or ``none``.

    Its certificate for ``localhost`` is ``certificate.pem`` in the folder.
    """
    mailbox = Mailbox()
    context = None if tls == "none" else _context(folder)
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=mailbox.port,
        ssl_context=context if tls == "tls" else None,
        tls_context=context if tls == "starttls" else None,
        require_starttls=tls == "starttls",
        authenticator=mailbox.check,
        auth_require_tls=tls == "starttls",
    )
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()


def _context(folder: Path) -> ssl.SSLContext:
    make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
