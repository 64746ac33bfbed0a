"""Spans of submits, attempts and requests, exported by OTLP over HTTP.

We decide ourselves what is recorded, before anything is made: what is not costs no span. What is recorded is made when
it is over, as a finished span of the SDK: one that is open meanwhile takes several times as long to make. The span of
an attempt is made when the store has its outcome. Its id is known before, so whatever the handler records stands below
it, in whichever process the handler runs.
"""

import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from mainspring.domain.instant import MILLISECOND, Instant
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
#: How long a request of the exporter may take, and how long a process that ends waits for the last of them.
_EXPORT_SECONDS = 5.0
FLUSH_SECONDS = 2.0
_LONGEST_ERROR = 4_000
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_GOOD = Status(StatusCode.UNSET)
_FAILED = (Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST)
#: Somebody has decided that this is not recorded, and those further in need not ask again.
_UNRECORDED = trace.set_span_in_context(
    NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT))), contexts.Context()
)

Attributes: TypeAlias = dict[str, str | int]


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
        super().__init__(exporter, 2 * _ROOM)
        self.refused = 0
        self._taken = 0
        self._counted = exporter

    def on_end(self, span: ReadableSpan) -> None:
        if self._taken - self._counted.exported - self._counted.failed >= _ROOM:
            self.refused += 1
        else:
            self._taken += 1
            super().on_end(span)


class _Sending(msgspec.Struct):
    """One or several runs that are submitted."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    attributes: Attributes
    links: Sequence[Link]


class Submitting:
    """Runs on their way to the store."""

    def __init__(self, tracing: "Tracing", clock: Clock) -> None:
        #: As they are to be submitted.
        self.runs: Sequence[NewRun] = ()
        self._tracing = tracing
        self._clock = clock
        self._began = clock.now()
        self._sent: list[_Sending] = []

    def __enter__(self) -> "Submitting":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = _GOOD if error is None else Status(StatusCode.ERROR, masks.everything(str(error))[:_LONGEST_ERROR])
        ended = self._clock.now()
        for sent in self._sent:
            self._tracing.record(
                sent.name,
                SpanKind.PRODUCER,
                sent.context,
                sent.parent,
                sent.attributes,
                self._began,
                ended,
                links=sent.links,
                status=status,
            )

    def add(self, runs: Sequence[NewRun], parent: SpanContext | None, links: Sequence[Link] = ()) -> SpanContext:
        first = runs[0]
        attributes = _messaging("send", "submit", first.queue)
        if len(runs) == 1:
            name = f"submit {first.task}"
            attributes["messaging.message.id"] = first.id
            attributes["mainspring.task"] = first.task
            attributes["mainspring.tenant"] = first.tenant
        else:
            name = f"submit {len(runs)} runs"
            attributes["messaging.batch.message_count"] = len(runs)
        context = _context(random.getrandbits(128) if parent is None else parent.trace_id, random.getrandbits(64) or 1)
        self._sent.append(_Sending(name, context, parent, attributes, links))
        return context


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
        self._resource = resource
        self._scope = InstrumentationScope("mainspring", version)
        # For what handlers record.
        self._theirs = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), resource, shutdown_on_exit=False)
        self._theirs.add_span_processor(self._processor)

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

    def record(
        self,
        name: str,
        kind: SpanKind,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Attributes,
        start: Instant,
        end: Instant,
        *,
        links: Sequence[Link] = (),
        events: Sequence[Event] = (),
        status: Status | None = None,
    ) -> None:
        """What is over."""
        self._processor.on_end(
            ReadableSpan(
                name=name,
                context=context,
                parent=parent,
                resource=self._resource,
                attributes=attributes,
                events=events,
                links=links,
                kind=kind,
                instrumentation_scope=self._scope,
                status=status or _GOOD,
                start_time=start * 1_000,
                end_time=max(end, start) * 1_000,
            )
        )

    # Submits.

    def submitting(self, runs: Sequence[NewRun], clock: Clock) -> Submitting | None:
        """Decide about runs that are submitted now; none: none of them is recorded. One that has a ``traceparent``
        already stands under it."""
        here = trace.get_current_span().get_span_context()
        recorded = here.is_valid and here.trace_flags.sampled
        if any(run.policy.trace for run in runs):
            return self._submitting_theirs(runs, clock)
        if here.is_valid and not recorded:
            return None
        if len(runs) > TOGETHER:
            return self._submitting_many(runs, here if recorded else None, clock)
        if not recorded and not self._chance():
            return None
        found = Submitting(self, clock)
        found.runs = _under(runs, found.add(runs, here if recorded else None))
        return found

    def _submitting_theirs(self, runs: Sequence[NewRun], clock: Clock) -> Submitting:
        """Each under the span of its own caller."""
        found = Submitting(self, clock)
        by_caller: dict[str, SpanContext] = {}
        made = []
        for run in runs:
            given = run.policy.trace
            if given and given not in by_caller:
                by_caller[given] = found.add([run], _context(*ids_in(given)))
            made.append(_under([run], by_caller[given])[0] if given else run)
        found.runs = made
        return found

    def _submitting_many(self, runs: Sequence[NewRun], here: SpanContext | None, clock: Clock) -> Submitting | None:
        """One trace of all of them would be too large to be read."""
        chosen = [number for number in range(len(runs)) if self._chance()]
        if here is None and not chosen:
            return None
        found = Submitting(self, clock)
        links = [] if here is None else [Link(found.add(runs, here))]
        made = list(runs)
        for number in chosen:
            made[number] = _under([made[number]], found.add([made[number]], None, links))[0]
        found.runs = made
        return found

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
        parent: SpanContext | None = _context(*found)
        attributes = _about(held, "process", "process")
        waited = max(held.started_at - held.due, 0)
        self._first(held, settlement, found, came_at)
        attributes["mainspring.attempt"] = held.attempt
        attributes["mainspring.waited_ms"] = waited // MILLISECOND
        attributes["mainspring.outcome"] = settlement.outcome.value
        attributes["mainspring.state"] = settlement.state.value
        events: list[Event] = []
        status = _GOOD
        if settlement.outcome in _FAILED:
            text = masks.everything(settlement.error or settlement.reason)
            last = text.strip().rpartition("\n")[2]
            kind, _, message = last.partition(": ")
            told = {
                "exception.type": kind,
                "exception.message": message or last,
                "exception.stacktrace": text[-_LONGEST_ERROR:],
            }
            events.append(Event("exception", told, ended_at * 1_000))
            status = Status(StatusCode.ERROR, last[:_LONGEST_ERROR])
        before = _context(found[0], span_of_attempt(held.id, held.attempt - 1))
        given_back = held.fence if settlement.outcome is Outcome.RELEASED else None
        self.record(
            f"process {held.task}",
            SpanKind.CONSUMER,
            _context(found[0], span_of_attempt(held.id, held.attempt, given_back)),
            parent,
            attributes,
            came_at,
            ended_at,
            links=[Link(before, {"mainspring.link": "the attempt before"})] if held.attempt > 1 else (),
            events=events,
            status=status,
        )

    def _first(self, held: HeldRun, settlement: Settlement, found: tuple[int, int], came_at: Instant) -> None:
        """The span of a tick, which nobody has submitted: all of its attempts stand under it. It is made once, by the
        first attempt that was neither lost nor given back, or that was the last."""
        counts = settlement.state.ended or settlement.outcome not in (Outcome.LOST, Outcome.RELEASED)
        if held.policy.trace or held.attempt - held.lost > 1 or not counts:
            return
        waited = max(held.started_at - held.due, 0)
        attributes = _about(held, "create", "tick")
        context = _context(*found)
        self.record(f"tick of {held.task}", SpanKind.PRODUCER, context, None, attributes, came_at - waited, came_at)

    def given(self, held: HeldRun) -> str:
        """The ``traceparent`` for a worker that records its attempts itself; empty: nobody records this one."""
        found = trace_of(held, self.ratio)
        return "" if found is None else traceparent(*found)

    def settled_elsewhere(self, held: HeldRun, settlement: Settlement) -> None:
        """By such a worker: it knows nothing of ticks."""
        found = trace_of(held, self.ratio)
        if found is not None:
            self._first(held, settlement, found, held.started_at)

    # Requests.

    @contextmanager
    def serving(
        self, method: str, path: str, name: str, headers: Mapping[str, str], clock: Clock
    ) -> Iterator[Callable[[int], None]]:
        """A request is answered inside. What it gives wants to know the status."""
        sent = headers.get("traceparent", "")
        given = read_traceparent(sent)
        attributes: Attributes = {"http.request.method": method, "http.route": path, "mainspring.operation": name}

        def answered(status: int) -> None:
            attributes["http.response.status_code"] = status

        if not given and (sent or not self._chance()):
            with standing(_UNRECORDED):
                yield answered
            return
        began = clock.now()
        parent = _context(*ids_in(given)) if given else None
        context = _context(parent.trace_id if parent else random.getrandbits(128), random.getrandbits(64) or 1)
        try:
            with standing(_beneath(context)):
                yield answered
        finally:
            broken = int(attributes.get("http.response.status_code", 500)) >= 500
            status = Status(StatusCode.ERROR) if broken else _GOOD
            self.record(
                f"{method} {path}", SpanKind.SERVER, context, parent, attributes, began, clock.now(), status=status
            )


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


def _about(held: HeldRun, kind: str, name: str) -> Attributes:
    attributes = _messaging(kind, name, held.queue)
    attributes["messaging.message.id"] = held.id
    attributes["mainspring.task"] = held.task
    attributes["mainspring.tenant"] = held.tenant
    if held.job_id is not None:
        attributes["mainspring.job_id"] = held.job_id
    return attributes


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)


def _beneath(context: SpanContext) -> contexts.Context:
    """Where the current span is this one."""
    return trace.set_span_in_context(NonRecordingSpan(context), contexts.Context())


def _under(runs: Sequence[NewRun], span: SpanContext) -> list[NewRun]:
    parent = traceparent(span.trace_id, span.span_id)
    return [msgspec.structs.replace(run, policy=traced(run.policy, parent)) for run in runs]
