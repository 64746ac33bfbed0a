"""Exports spans to a collector, by OTLP over HTTP, every few seconds.

OpenTelemetry's own exporter takes 60 µs to serialize a span. Our spans arrive serialized (``spans.py``), and those of
handlers are serialized here, on a separate thread. Most environment variables of the standard exporter are supported.
"""

import gzip
import logging
import os
import ssl
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx2
from opentelemetry import context as contexts
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util.re import parse_env_headers

from mainspring.core.runtime.log import get_logger

_log = get_logger("mainspring.tracing")

#: The most spans that wait for the collector. Further ones are dropped and counted.
ROOM = 8_192
#: The most spans per request, which also triggers a request; fewer if they are larger, because proxies accept 1 MB.
_TOGETHER = 2_048
_LARGEST = 900_000
#: The estimated size of a span that is not serialized yet.
_USUAL = 1_000
_PAUSE_MILLISECONDS = 5_000
#: The time limit of each step of a request, and how long an ending process waits for the last spans.
_REQUEST_SECONDS = 5.0
_FLUSH_SECONDS = 2.0
#: Status codes of the collector that are retried, and the pauses before the retries.
_BUSY = (429, 502, 503, 504)
_AGAIN_SECONDS = (1.0, 2.0)
_PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}

#: A serialized ``ScopeSpans`` with one span. Concatenating several gives one with all of them.
Written: TypeAlias = bytes


class Sender(SpanProcessor):
    """Sends spans. Never blocks its callers, and holds no more than ``ROOM`` spans."""

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
        self._together = _number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _TOGETHER)
        self._pause = _number("OTEL_BSP_SCHEDULE_DELAY", _PAUSE_MILLISECONDS) / 1_000
        # Logged once by us, instead of for each attribute.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL + 1)
        self._away = False
        self._begin()
        # A forked process has no copy of its threads.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._waiting: deque[Written | ReadableSpan] = deque()
        self._under_way = 0
        self._few, self._sending = threading.Lock(), threading.Lock()
        self._wanted, self._resting = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._client: httpx2.Client | None = None

    @property
    def dropped(self) -> int:
        return self._refused + self._failed

    def put(self, span: Written | ReadableSpan) -> None:
        waiting = self._waiting
        if len(waiting) + self._under_way >= ROOM:
            with self._few:
                self._refused += 1
            return
        waiting.append(span)
        if self._thread is None:
            self._start()
        elif len(waiting) >= self._together and not self._wanted.is_set():
            self._wanted.set()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.put(span)

    def force_flush(self, timeout_millis: int = round(_FLUSH_SECONDS * 1_000)) -> bool:
        """Send waiting spans, if that succeeds soon.

        Uses a daemon thread, which does not delay the end of the process.
        """
        sending = threading.Thread(target=self._send_all, name="mainspring last spans", daemon=True)
        try:
            sending.start()
        except RuntimeError:
            return False
        sending.join(timeout_millis / 1_000)
        return not sending.is_alive()

    def shutdown(self) -> None:
        self.force_flush()

    def _start(self) -> None:
        # If no thread can be started, the next span tries again: no caller fails because of it.
        with self._few, suppress(RuntimeError):
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="mainspring spans", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._pause)
            self._wanted.clear()
            with suppress(Exception):
                self._send_all()

    def _send_all(self) -> None:
        # Instrumentation of outgoing calls must not record these.
        token = contexts.attach(contexts.set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))
        try:
            with self._sending:
                while self._waiting:
                    self._send(self._taken())
                    self._under_way = 0
        finally:
            contexts.detach(token)

    def _taken(self) -> list[Written | ReadableSpan]:
        """Take the spans of the next request."""
        taken: list[Written | ReadableSpan] = []
        size = 0
        while self._waiting and len(taken) < self._together and size < _LARGEST:
            span = self._waiting.popleft()
            taken.append(span)
            self._under_way += 1
            size += len(span) if isinstance(span, bytes) else _USUAL
        return taken

    def _send(self, spans: Sequence[Written | ReadableSpan]) -> None:
        theirs, broken = _of_handlers([span for span in spans if isinstance(span, ReadableSpan)])
        self._failed += broken
        ours = [span for span in spans if isinstance(span, bytes)]
        if ours:
            last = theirs.resource_spans.add()
            last.CopyFrom(self._about)
            last.scope_spans[0].MergeFromString(b"".join(ours))
        try:
            why = self._brought(theirs.SerializeToString())
        except Exception as error:
            # Without its message, which may contain a header's value.
            why = type(error).__name__
        if why:
            self._failed += len(spans) - broken
            if not self._away:
                _log.warning("spans dropped", spans=len(spans), why=why)
        else:
            self.exported += len(spans) - broken
        self._away = bool(why)

    def _brought(self, body: bytes) -> str:
        """Send a request; returns why it failed, or an empty text."""
        if self._packed_by in _PACKERS:
            body = _PACKERS[self._packed_by](body)
        for pause in (*_AGAIN_SECONDS, 0):
            if self._client is None:
                self._client = httpx2.Client(verify=_tls(self._endpoint), timeout=_REQUEST_SECONDS)
            try:
                answer = self._client.post(self._endpoint, content=body, headers=self._headers)
            except httpx2.TransportError as error:
                why = repr(error)
                # Certificates may have been renewed: the next try reads them again.
                self._client.close()
                self._client = None
            else:
                if answer.is_success:
                    return ""
                why = f"the collector refused them: {answer.status_code}"
                if answer.status_code not in _BUSY:
                    return why
            self._resting.wait(pause)
        return why


def _of_handlers(spans: Sequence[ReadableSpan]) -> tuple[ExportTraceServiceRequest, int]:
    """Serialize the spans of handlers with OpenTelemetry; also returns how many could not be serialized."""
    try:
        return encode_spans(spans), 0
    except Exception:
        made = ExportTraceServiceRequest()
        broken = 0
        for span in spans:
            try:
                made.MergeFrom(encode_spans([span]))
            except Exception:
                broken += 1
        return made, broken


def _environment(name: str) -> str:
    """Read an OpenTelemetry variable, for traces or for all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _number(name: str, usual: int) -> int:
    """Read a number of at least 1."""
    try:
        return max(int(os.environ[name]), 1)
    except (KeyError, ValueError):
        return usual


def _address(endpoint: str) -> str:
    """Return the URL of the collector; as with OTEL_EXPORTER_OTLP_ENDPOINT, the path is appended."""
    if not endpoint and (whole := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return whole
    base = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    return f"{base.rstrip('/').removesuffix('/v1/traces')}/v1/traces"


def _tls(endpoint: str) -> ssl.SSLContext | bool:
    if urlsplit(endpoint).scheme != "https":
        return False
    context = httpx2.create_ssl_context()
    if authority := _environment("CERTIFICATE"):
        folder = os.path.isdir(authority)
        context = ssl.create_default_context(cafile=None if folder else authority, capath=authority if folder else None)
    if certificate := _environment("CLIENT_CERTIFICATE"):
        context.load_cert_chain(certificate, _environment("CLIENT_KEY") or None)
    return context


def _about(resource: Resource, scope: InstrumentationScope) -> ResourceSpans:
    """Return the resource and scope of our spans as OpenTelemetry serializes them, without spans."""
    one = ReadableSpan("", SpanContext(1, 1, is_remote=False), resource=resource, instrumentation_scope=scope)
    about: ResourceSpans = encode_spans([one]).resource_spans[0]
    about.scope_spans[0].ClearField("spans")
    return about
