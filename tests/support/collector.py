"""An OTLP collector over HTTP that keeps all spans, decoded by OpenTelemetry's own types."""

import gzip
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.waiting import wait_until


class Recorded(NamedTuple):
    """A received span."""

    name: str
    kind: int
    trace: str
    span: str
    parent: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    events: tuple[str, ...]
    start: int
    end: int
    #: 2: an error.
    status: int
    service: str


class Collector:
    def __init__(self, certificates: Path | None = None) -> None:
        """``certificates``: speak TLS, and require one of them from clients."""
        self.spans: list[Recorded] = []
        #: One entry for each request.
        self.headers: list[dict[str, str]] = []
        #: Status codes for the next requests, whose spans are dropped.
        self.refusals: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                if outer.refusals:
                    self.send_response(outer.refusals.pop(0))
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                outer.spans += _read(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificates is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "certificate.pem")
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(certificates / "certificate.pem", certificates / "key.pem")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if certificates is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, trace: str) -> list[Recorded]:
        return [span for span in self.spans if span.trace == trace]

    def until(self, found: Callable[[list[Recorded]], bool]) -> list[Recorded]:
        """Wait until the condition holds for the spans; all of them."""
        wait_until(lambda: found(self.spans), lambda: [(span.name, span.attributes) for span in self.spans])
        return self.spans


def _read(request: ExportTraceServiceRequest) -> list[Recorded]:
    return [
        Recorded(
            name=span.name,
            kind=span.kind,
            trace=span.trace_id.hex(),
            span=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            attributes=_values(span.attributes),
            events=tuple(event.name for event in span.events),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            status=span.status.code,
            service=str(_values(resource.resource.attributes).get("service.name")),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
