"""Brings spans to a collector, by OTLP over HTTP, every few seconds.

OpenTelemetry's own exporter takes 60 µs to write down a span. Ours come written down already (``spans.py``), and
those of handlers are written down here, on a thread of its own. What the exporter reads from the environment is read
here as well.
"""

import gzip
import os
import ssl
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx2
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util.re import parse_env_headers

from mainspring.runtime.log import get_logger

_log = get_logger("mainspring.tracing")

#: So many spans wait for the collector. What comes beyond that is dropped and counted.
ROOM = 8_192
#: So many go with one request, and as soon as so many wait.
_TOGETHER = 2_048
_PAUSE_SECONDS = 5.0
#: How long a request may take, and how long a process that ends waits for the last of them.
_REQUEST_SECONDS = 5.0
FLUSH_SECONDS = 2.0
#: What the collector may say that is worth another try, and when.
_BUSY = (429, 502, 503, 504)
_AGAIN_SECONDS = 1.0
_PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}

#: As ``ScopeSpans`` with one span: any number of these, one after the other, are one with all of them.
Written: TypeAlias = bytes


class Sender(SpanProcessor):
    """Never waits, and takes no more than there is room for."""

    def __init__(self, endpoint: str, resource: Resource, scope: InstrumentationScope) -> None:
        self.exported = 0
        self._refused = self._failed = 0
        self._endpoint = _address(endpoint)
        self._headers = {
            **parse_env_headers(_environment("HEADERS"), liberal=True),
            "content-type": "application/x-protobuf",
        }
        self._packed_by = _environment("COMPRESSION").strip().lower()
        if self._packed_by in _PACKERS:
            self._headers["content-encoding"] = self._packed_by
        self._about = _about(resource, scope)
        self._pause = _pause()
        self._away = False
        self._begin()
        # A copy of this process has none of its threads.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._waiting: deque[Written | ReadableSpan] = deque()
        self._few, self._sending = threading.Lock(), threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._client: httpx2.Client | None = None

    @property
    def dropped(self) -> int:
        return self._refused + self._failed

    def put(self, span: Written | ReadableSpan) -> None:
        waiting = self._waiting
        if len(waiting) >= ROOM:
            with self._few:
                self._refused += 1
            return
        waiting.append(span)
        if self._thread is None:
            self._start()
        elif len(waiting) == _TOGETHER:
            self._wanted.set()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.put(span)

    def force_flush(self, timeout_millis: int = round(FLUSH_SECONDS * 1_000)) -> bool:
        """What waits goes out, if it does so soon. Waits on a thread that nobody waits for when the process ends."""
        sending = threading.Thread(target=self._send_all, name="mainspring last spans", daemon=True)
        sending.start()
        sending.join(timeout_millis / 1_000)
        return not sending.is_alive()

    def _start(self) -> None:
        with self._few:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mainspring spans", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._pause)
            self._wanted.clear()
            self._send_all()

    def _send_all(self) -> None:
        with self._sending:
            while self._waiting:
                spans = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TOGETHER))]
                try:
                    why = self._send(self._request(spans))
                except Exception as error:
                    why = repr(error)
                if why:
                    self._failed += len(spans)
                    if not self._away:
                        _log.warning("spans are dropped", spans=len(spans), why=why)
                else:
                    self.exported += len(spans)
                self._away = bool(why)

    def _request(self, spans: Sequence[Written | ReadableSpan]) -> bytes:
        theirs = [span for span in spans if isinstance(span, ReadableSpan)]
        request = encode_spans(theirs) if theirs else ExportTraceServiceRequest()
        if len(theirs) < len(spans):
            ours = request.resource_spans.add()
            ours.CopyFrom(self._about)
            ours.scope_spans[0].MergeFromString(b"".join(span for span in spans if isinstance(span, bytes)))
        body: bytes = request.SerializeToString()
        return body

    def _send(self, body: bytes) -> str:
        """Why it could not be; empty: it could."""
        if self._packed_by in _PACKERS:
            body = _PACKERS[self._packed_by](body)
        why = self._try(body)
        if why is None:
            self._wanted.wait(_AGAIN_SECONDS)
            why = self._try(body)
        return "the collector is away, or busy" if why is None else why

    def _try(self, body: bytes) -> str | None:
        """As above; none: perhaps later."""
        if self._client is None:
            self._client = httpx2.Client(verify=_tls(self._endpoint), timeout=_REQUEST_SECONDS)
        try:
            answer = self._client.post(self._endpoint, content=body, headers=self._headers)
        except httpx2.TransportError:
            return None
        if answer.is_success:
            return ""
        return None if answer.status_code in _BUSY else f"the collector refused them: {answer.status_code}"


def _environment(name: str) -> str:
    """What OpenTelemetry calls so, for traces or for all."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _pause() -> float:
    """Seconds between two requests."""
    try:
        return max(int(os.environ["OTEL_BSP_SCHEDULE_DELAY"]) / 1_000, 0.1)
    except (KeyError, ValueError):
        return _PAUSE_SECONDS


def _address(endpoint: str) -> str:
    """As with OTEL_EXPORTER_OTLP_ENDPOINT: the path is ours to say."""
    if not endpoint and (whole := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return whole
    base = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    return f"{base.rstrip('/').removesuffix('/v1/traces')}/v1/traces"


def _tls(endpoint: str) -> ssl.SSLContext | bool:
    if urlsplit(endpoint).scheme != "https":
        return False
    context = ssl.create_default_context(cafile=_environment("CERTIFICATE") or None)
    if certificate := _environment("CLIENT_CERTIFICATE"):
        context.load_cert_chain(certificate, _environment("CLIENT_KEY") or None)
    return context


def _about(resource: Resource, scope: InstrumentationScope) -> ResourceSpans:
    """Whose spans ours are, as OpenTelemetry writes it down; without any."""
    one = ReadableSpan("", SpanContext(1, 1, is_remote=False), resource=resource, instrumentation_scope=scope)
    about: ResourceSpans = encode_spans([one]).resource_spans[0]
    about.scope_spans[0].ClearField("spans")
    return about
