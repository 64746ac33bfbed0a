"""Spans of submits, attempts and requests, exported by OTLP over HTTP.

We decide ourselves what is recorded, before a span is made: what is not costs no span. The span of an attempt is made
when the store has its outcome. Its id is known before, so whatever the handler records stands below it, in whichever
process the handler runs.
"""

import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from mainspring.domain.instant import Instant
from mainspring.domain.run import HeldRun, NewRun, Outcome, Settlement
from mainspring.domain.traces import ids_in, read_traceparent, span_of_attempt, trace_of, traced, traceparent
from mainspring.ports.clock import Clock
from mainspring.runtime.log import get_logger
from mainspring.runtime.masking import masks
from mainspring.runtime.metrics import declared
from mainspring.runtime.metrics.book import Book

if TYPE_CHECKING:
    from mainspring.runtime.metrics.figures import Ended

_log = get_logger("mainspring.tracing")

#: Up to so many runs of one submit are in its trace. Of more, each has its own chance and its own trace, with a link.
TOGETHER = 100
#: So many spans wait for the exporter. What comes beyond that is dropped and counted.
_ROOM = 8_192
_BATCH = 512
_EVERY_MS = 1_000
#: How long a request of the exporter may take, and how long a process that ends waits for the last of them.
_EXPORT_SECONDS = 5.0
FLUSH_SECONDS = 2.0
_LONGEST_ERROR = 4_000
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FAILED = (Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST)
#: Somebody has decided that this is not recorded, and those further in need not ask again.
_UNRECORDED = NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT)))

Attributes: TypeAlias = dict[str, str | int]


class _Ids(RandomIdGenerator):
    """At random, unless the next ones are said."""

    def __init__(self) -> None:
        self.next = threading.local()

    def generate_trace_id(self) -> int:
        said: int = self.next.__dict__.pop("trace", 0)
        return said or super().generate_trace_id()

    def generate_span_id(self) -> int:
        said: int = self.next.__dict__.pop("span", 0)
        return said or super().generate_span_id()


class _Counted(SpanExporter):
    """Counts what goes out and what does not."""

    def __init__(self, inner: SpanExporter) -> None:
        self.exported = 0
        self.failed = 0
        self._inner = inner
        self._away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._inner.export(spans)
        except Exception as error:
            self._fail(spans, repr(error))
            return SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            self._away = False
        else:
            self._fail(spans, "the collector is away, or refused them")
        return result

    def _fail(self, spans: Sequence[ReadableSpan], why: str) -> None:
        self.failed += len(spans)
        if not self._away:
            self._away = True
            _log.warning("spans are dropped", spans=len(spans), why=why)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class _Processor(BatchSpanProcessor):
    """Takes no more than there is room for, and never waits."""

    def __init__(self, exporter: _Counted) -> None:
        # The room is kept here: the queue itself would say so in the log for each one.
        super().__init__(exporter, 2 * _ROOM, schedule_delay_millis=_EVERY_MS, max_export_batch_size=_BATCH)
        self.refused = 0
        self._taken = 0
        self._counted = exporter

    def on_end(self, span: ReadableSpan) -> None:
        if self._taken - self._counted.exported - self._counted.failed >= _ROOM:
            self.refused += 1
        else:
            self._taken += 1
            super().on_end(span)


class Submitting:
    """Runs on their way to the store."""

    def __init__(self, runs: Sequence[NewRun], spans: Sequence[trace.Span]) -> None:
        #: As they are to be submitted.
        self.runs = runs
        self._spans = spans

    def __enter__(self) -> "Submitting":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for span in self._spans:
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, masks.everything(str(error))[:_LONGEST_ERROR]))
            span.end()


class Tracing:
    def __init__(self, endpoint: str, ratio: float, service: str, version: str) -> None:
        """``endpoint``: of the collector; empty: what the environment says, or this machine. ``ratio``: how much of
        what nobody else has decided about is recorded."""
        self.ratio = ratio
        self._said = (endpoint, ratio, service, version)
        # Said once by us, and not by the exporter for each request.
        for name in ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal"):
            _silence(name)
        self._exporter = _Counted(OTLPSpanExporter(endpoint=_path_of(endpoint), timeout=_EXPORT_SECONDS))
        self._processor = _Processor(self._exporter)
        resource = Resource.create(
            {"service.name": os.environ.get("OTEL_SERVICE_NAME") or service, "service.version": version}
        )
        self._ids = _Ids()
        # What is asked of the first is decided already. The second is for what handlers record.
        ours = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        ours.add_span_processor(self._processor)
        self._theirs = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), resource, shutdown_on_exit=False)
        self._theirs.add_span_processor(self._processor)
        self._tracer = ours.get_tracer("mainspring", version)

    @property
    def said(self) -> tuple[str, float, str, str]:
        """What makes the same in a child process."""
        return self._said

    def lend(self) -> None:
        """To the code of handlers, unless the application has set up tracing itself."""
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self._theirs)

    def flush(self) -> None:
        """What waits goes out, if it does so soon. Waits on a thread that nobody waits for when the process ends."""
        sending = threading.Thread(target=self._send_all, name="mainspring spans", daemon=True)
        sending.start()
        sending.join(FLUSH_SECONDS)

    def _send_all(self) -> None:
        with suppress(Exception):
            self._processor.force_flush(round(FLUSH_SECONDS * 1_000))

    def tell(self, book: Book) -> None:
        book.put(declared.SPANS, self._exporter.exported, "exported")
        book.put(declared.SPANS, self._exporter.failed + self._processor.refused, "dropped")

    # Submits.

    def submitting(self, runs: Sequence[NewRun]) -> Submitting | None:
        """Decide about runs that are submitted now; none: none of them is recorded. One that has a ``traceparent``
        already stands under it."""
        here = trace.get_current_span().get_span_context()
        recorded = here.is_valid and here.trace_flags.sampled
        if not any(run.policy.trace for run in runs):
            if len(runs) > TOGETHER:
                return self._submitting_many(runs, here if recorded else None, decided=here.is_valid and not recorded)
            if not recorded and (here.is_valid or not self._chance()):
                return None
            span = self._submit_span(runs, here if recorded else None)
            return Submitting(_under(runs, span), [span])
        spans: list[trace.Span] = []
        found: dict[str, str] = {}
        made = []
        for run in runs:
            given = run.policy.trace
            if given and given not in found:
                span = self._submit_span([run], _context(*ids_in(given)))
                spans.append(span)
                found[given] = _parent_of(span)
            made.append(msgspec.structs.replace(run, policy=traced(run.policy, found[given])) if given else run)
        return Submitting(made, spans)

    def _submitting_many(self, runs: Sequence[NewRun], here: SpanContext | None, *, decided: bool) -> Submitting | None:
        """One trace of all of them would be too large to be read."""
        if decided:
            return None
        spans: list[trace.Span] = [] if here is None else [self._submit_span(runs, here)]
        links = [Link(span.get_span_context()) for span in spans]
        made = list(runs)
        for number, run in enumerate(runs):
            if self._chance():
                span = self._submit_span([run], None, links)
                spans.append(span)
                made[number] = _under([run], span)[0]
        return Submitting(made, spans) if spans else None

    def _submit_span(
        self, runs: Sequence[NewRun], parent: SpanContext | None, links: Sequence[Link] = ()
    ) -> trace.Span:
        first = runs[0]
        attributes = _messaging("send", "submit", first.queue)
        if len(runs) == 1:
            name = f"submit {first.task}"
            attributes |= {
                "messaging.message.id": first.id,
                "mainspring.task": first.task,
                "mainspring.tenant": first.tenant,
            }
        else:
            name = f"submit {len(runs)} runs"
            attributes["messaging.batch.message_count"] = len(runs)
        return self._tracer.start_span(name, _beneath(parent), SpanKind.PRODUCER, attributes, links)

    def _chance(self) -> bool:
        return random.random() < self.ratio

    # Attempts.

    def inside(self, held: HeldRun) -> "contexts.Context | None":
        """What the handler of an attempt finds as the current span; none: nobody records this attempt."""
        found = trace_of(held, self.ratio)
        return None if found is None else _beneath(_context(found[0], span_of_attempt(held.id, held.attempt)))

    def settled(self, batch: Sequence[tuple["Ended", Settlement]], clock: Clock) -> None:
        """Attempts have ended, and the store knows."""
        for attempt, settlement in batch:
            held = attempt.held
            if held.policy.trace or held.scheduled_at is not None:
                found = trace_of(held, self.ratio)
                if found is not None:
                    came_at: Instant = clock.now() - clock.monotonic() + attempt.came_at
                    took = max(attempt.ended_at - attempt.came_at, 0)
                    self._attempt(held, settlement, found, came_at, came_at + took)

    def _attempt(
        self, held: HeldRun, settlement: Settlement, found: tuple[int, int], came_at: Instant, ended_at: Instant
    ) -> None:
        waited = max(held.started_at - held.due, 0)
        parent = _context(*found)
        about = {"messaging.message.id": held.id, "mainspring.task": held.task, "mainspring.tenant": held.tenant}
        if held.job_id is not None:
            about["mainspring.job_id"] = held.job_id
        is_tick = not held.policy.trace
        if is_tick and held.attempt == 1:
            self._ids.next.trace, self._ids.next.span = found
        # From when it was due until a worker had it. Of a tick this is what all of its attempts stand under.
        wait = self._tracer.start_span(
            f"tick of {held.task}" if is_tick and held.attempt == 1 else f"wait in {held.queue}",
            _beneath(None if is_tick and held.attempt == 1 else parent),
            SpanKind.PRODUCER if is_tick and held.attempt == 1 else SpanKind.INTERNAL,
            {**_messaging("receive", "wait", held.queue), **about},
            start_time=(came_at - waited) * 1_000,
        )
        wait.end(came_at * 1_000)
        before = span_of_attempt(held.id, held.attempt - 1)
        self._ids.next.span = span_of_attempt(held.id, held.attempt)
        span = self._tracer.start_span(
            f"process {held.task}",
            _beneath(parent),
            SpanKind.CONSUMER,
            {
                **_messaging("process", "process", held.queue),
                **about,
                "mainspring.attempt": held.attempt,
                "mainspring.outcome": settlement.outcome.value,
                "mainspring.state": settlement.state.value,
            },
            [Link(_context(found[0], before), {"mainspring.link": "the attempt before"})] if held.attempt > 1 else (),
            start_time=came_at * 1_000,
        )
        if settlement.outcome in _FAILED:
            text = masks.everything(settlement.error or settlement.reason)
            last = text.strip().rpartition("\n")[2]
            kind, _, message = last.partition(": ")
            told = {
                "exception.type": kind,
                "exception.message": message or last,
                "exception.stacktrace": text[-_LONGEST_ERROR:],
            }
            span.add_event("exception", told, ended_at * 1_000)
            span.set_status(Status(StatusCode.ERROR, last[:_LONGEST_ERROR]))
        span.end(ended_at * 1_000)

    # Requests.

    @contextmanager
    def serving(self, method: str, path: str, name: str, headers: Mapping[str, str]) -> Iterator[Callable[[int], None]]:
        """A request is answered inside. What it gives wants to know the status."""
        sent = headers.get("traceparent", "")
        given = read_traceparent(sent)
        if not given and (sent or not self._chance()):
            span: trace.Span = _UNRECORDED
        else:
            parent = _context(*ids_in(given)) if given else None
            attributes: Attributes = {"http.request.method": method, "http.route": path, "mainspring.operation": name}
            span = self._tracer.start_span(f"{method} {path}", _beneath(parent), SpanKind.SERVER, attributes)
        token = contexts.attach(trace.set_span_in_context(span))

        def answered(status: int) -> None:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))

        try:
            yield answered
        finally:
            contexts.detach(token)
            span.end()


@contextmanager
def standing(context: "contexts.Context") -> Iterator[None]:
    """Whatever is recorded inside stands under this."""
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


@cache
def tracing_of(endpoint: str, ratio: float, service: str, version: str) -> Tracing:
    """One for a process, however many engines it opens."""
    return Tracing(endpoint, ratio, service, version)


def _silence(name: str) -> None:
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _path_of(endpoint: str) -> str | None:
    """As with OTEL_EXPORTER_OTLP_ENDPOINT: the path is ours to say."""
    return f"{endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/traces" if endpoint else None


def _messaging(kind: str, name: str, queue: str) -> Attributes:
    """By OpenTelemetry's conventions for messaging."""
    return {
        "messaging.system": "mainspring",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": queue,
    }


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)


def _beneath(parent: SpanContext | None) -> Any:
    """None: the first of its trace, whatever is going on around it."""
    return contexts.Context() if parent is None else trace.set_span_in_context(NonRecordingSpan(parent))


def _parent_of(span: trace.Span) -> str:
    context = span.get_span_context()
    return traceparent(context.trace_id, context.span_id)


def _under(runs: Sequence[NewRun], span: trace.Span) -> list[NewRun]:
    parent = _parent_of(span)
    return [msgspec.structs.replace(run, policy=traced(run.policy, parent)) for run in runs]
