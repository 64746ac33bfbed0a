"""Spans of submits, attempts and requests, exported by OTLP over HTTP.

The sampling decision is made here, before any object is created: an unrecorded operation costs no span. A recorded span
is serialized when it is over; the parts shared by many spans are serialized once. The span of an attempt is created
when the store has its outcome. Its id is known before, so spans of the handler are its children, whichever process the
handler runs in.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, Outcome
from mainspring.core.model.runs.traces import (
    build_trace,
    chosen,
    ids_in,
    read_traceparent,
    span_of_attempt,
    traced,
    traceparent,
)
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.masking import masks
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.tracing.attributes import (
    FROM_ELSEWHERE,
    RECORDED,
    Attributes,
    build_error_status,
    build_exception,
    build_link,
    describe_messaging,
    describe_run,
    encode_attribute,
    serialize_shared,
    share_attributes,
)
from mainspring.core.runtime.tracing.sender import Sender

if TYPE_CHECKING:
    from mainspring.core.runtime.metrics.run_metrics import EndedAttempt

#: Up to this many runs of one submit share its trace. In a larger submit, each run is sampled separately and has its
#: own trace, with a link.
TOGETHER = 100
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FAILED = (Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST)
#: The decision not to record was made here; nested code need not decide again.
_UNRECORDED = trace.set_span_in_context(
    NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT))), contexts.Context()
)

#: A trace id, and the id of a span in that trace.
Ids: TypeAlias = tuple[int, int]


class _Sending(msgspec.Struct):
    """One or several runs that are being submitted."""

    #: The serialized part that many spans share.
    same: bytes
    ids: Ids
    parent: Ids | None
    own: Attributes
    links: Sequence[Ids]


class Submitting:
    """The spans of runs on their way to the store."""

    def __init__(self, tracing: "Tracing", clock: Clock) -> None:
        #: The runs in the form in which they are to be submitted.
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
        status = None if error is None else build_error_status(masks.everything(str(error)))
        ended = self._clock.now()
        for sent in self._sent:
            self._tracing.record(
                sent.same, sent.ids, sent.parent, sent.own, self._began, ended, links=sent.links, status=status
            )

    def add(self, runs: Sequence[NewRun], parent: Ids | None, links: Sequence[Ids] = ()) -> Ids:
        first = runs[0]
        if len(runs) == 1:
            same = share_attributes(f"submit {first.task}", "send", "submit", first.task, first.queue, first.tenant)
            own: Attributes = (("messaging.message.id", first.id),)
        else:
            own = (("messaging.batch.message_count", len(runs)),)
            same = serialize_shared(
                f"submit {len(runs)} runs", Span.SPAN_KIND_PRODUCER, describe_messaging("send", "submit", first.queue)
            )
        ids = _new_ids(parent)
        self._sent.append(_Sending(same, ids, parent, own, links))
        return ids


class Tracing:
    def __init__(self, endpoint: str, ratio: float, service: str, version: str) -> None:
        """``endpoint``: of the collector; empty: from the environment, or this machine. ``ratio``: the share of
        operations to record where no caller has decided yet."""
        self.ratio = ratio
        self._said = (endpoint, ratio, service, version)
        resource = Resource.create(
            {"service.name": os.environ.get("OTEL_SERVICE_NAME") or service, "service.version": version}
        )
        self.sender = Sender(endpoint, resource, InstrumentationScope("mainspring", version))
        # For spans of handlers.
        self._theirs = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), resource, shutdown_on_exit=False)
        self._theirs.add_span_processor(self.sender)

    @property
    def said(self) -> tuple[str, float, str, str]:
        """The arguments that create the same object in a child process."""
        return self._said

    def lend(self) -> None:
        """Offer our tracer to handlers, unless the application has set up tracing itself."""
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self._theirs)

    def flush(self) -> None:
        """Send waiting spans, if that succeeds soon."""
        self.sender.force_flush()

    def export(self, exposition: Exposition) -> None:
        exposition.put(declared.SPANS, self.sender.exported, "exported")
        exposition.put(declared.SPANS, self.sender.dropped, "dropped")

    def record(
        self,
        same: bytes,
        ids: Ids,
        parent: Ids | None,
        own: Attributes,
        start: Instant,
        end: Instant,
        *,
        links: Sequence[Ids] = (),
        error: str = "",
        status: Status | None = None,
    ) -> None:
        """Record a finished span.

        ``same``: the serialized part that many spans share. ``error``: the error with its traceback.
        """
        trace_id, span_id = ids
        span = Span(
            trace_id=trace_id.to_bytes(16, "big"),
            span_id=span_id.to_bytes(8, "big"),
            parent_span_id=b"" if parent is None else parent[1].to_bytes(8, "big"),
            flags=RECORDED if parent is None else FROM_ELSEWHERE,
            start_time_unix_nano=max(start, 0) * 1_000,
            end_time_unix_nano=max(end, start, 0) * 1_000,
            attributes=[encode_attribute(*one) for one in own],
            links=[build_link(*one) for one in links],
            status=status,
        )
        if error:
            span.events.append(build_exception(error, max(end, start, 0)))
        span.MergeFromString(same)
        self.sender.put(ScopeSpans(spans=[span]).SerializeToString())

    # Submits.

    def submitting(self, runs: Sequence[NewRun], clock: Clock) -> Submitting | None:
        """Decide about runs that are submitted now. None: none of them is recorded.

        A run with a ``traceparent`` keeps it as its parent.
        """
        if not runs:
            return None
        here = trace.get_current_span().get_span_context()
        if any(run.policy.trace for run in runs):
            return self._submitting_theirs(runs, clock)
        if here.is_valid and not here.trace_flags.sampled:
            return None
        above = (here.trace_id, here.span_id) if here.is_valid else None
        if len(runs) > TOGETHER:
            return self._submitting_many(runs, above, clock)
        if above is None and not self._chance():
            return None
        found = Submitting(self, clock)
        found.runs = _under(runs, found.add(runs, above))
        return found

    def _submitting_theirs(self, runs: Sequence[NewRun], clock: Clock) -> Submitting:
        """Put each run under the span of its own caller."""
        found = Submitting(self, clock)
        by_caller: dict[str, Ids] = {}
        made = []
        for run in runs:
            given = run.policy.trace
            if given and given not in by_caller:
                by_caller[given] = found.add([run], ids_in(given))
            made.append(_under([run], by_caller[given])[0] if given else run)
        found.runs = made
        return found

    def _submitting_many(self, runs: Sequence[NewRun], above: Ids | None, clock: Clock) -> Submitting | None:
        """Sample each run on its own: a single trace of all of them would be too large to read."""
        recorded = chosen(len(runs), self.ratio, random.random)
        if above is None and not recorded:
            return None
        found = Submitting(self, clock)
        links = [] if above is None else [found.add(runs, above)]
        made = list(runs)
        for number in recorded:
            made[number] = _under([made[number]], found.add([made[number]], None, links))[0]
        found.runs = made
        return found

    def _chance(self) -> bool:
        return random.random() < self.ratio

    # Attempts.

    def inside(self, held: HeldRun) -> "contexts.Context | None":
        """Return the context in which the handler of an attempt runs. None: this attempt is not recorded."""
        found = build_trace(held, self.ratio)
        return None if found is None else _beneath(found[0], span_of_attempt(held.id, held.attempt))

    def completed(self, batch: Sequence[tuple["EndedAttempt", Completion]], clock: Clock) -> None:
        """Record attempts whose outcome the store has accepted."""
        for attempt, completion in batch:
            held = attempt.held
            if held.policy.trace or held.scheduled_at is not None:
                found = build_trace(held, self.ratio)
                if found is not None:
                    came_at: Instant = clock.now() - clock.monotonic() + attempt.came_at
                    took = max(attempt.ended_at - attempt.came_at, 0)
                    self._attempt(held, completion, found, came_at, came_at + took)

    def _attempt(self, held: HeldRun, completion: Completion, found: Ids, came_at: Instant, ended_at: Instant) -> None:
        self._first(held, completion, found, came_at)
        same = share_attributes(
            f"process {held.task}",
            "process",
            "process",
            held.task,
            held.queue,
            held.tenant,
            ("mainspring.attempt", held.attempt),
            ("mainspring.outcome", completion.outcome.value),
            ("mainspring.state", completion.state.value),
        )
        waited = max(held.started_at - held.due, 0)
        error, status = "", None
        if completion.outcome in _FAILED:
            error = masks.everything(completion.error or completion.reason).strip()
            status = build_error_status(error.rpartition("\n")[2])
        given_back = held.fence if completion.outcome is Outcome.RELEASED else None
        self.record(
            same,
            (found[0], span_of_attempt(held.id, held.attempt, given_back)),
            found,
            (*describe_run(held), ("mainspring.waited_ms", waited // MILLISECOND)),
            came_at,
            ended_at,
            # A link to the previous attempt.
            links=[(found[0], span_of_attempt(held.id, held.attempt - 1))] if held.attempt > 1 else (),
            error=error,
            status=status,
        )

    def _first(self, held: HeldRun, completion: Completion, found: Ids, came_at: Instant) -> None:
        """Record the span of a tick, which has no submit: all of its attempts are children of it.

        It is recorded once, by the first attempt that was neither lost nor released, or by the last attempt.
        """
        counts = completion.state.ended or completion.outcome not in (Outcome.LOST, Outcome.RELEASED)
        if held.policy.trace or held.attempt - held.lost > 1 or not counts:
            return
        waited = max(held.started_at - held.due, 0)
        same = share_attributes(f"tick of {held.task}", "create", "tick", held.task, held.queue, held.tenant)
        self.record(same, found, None, describe_run(held), came_at - waited, came_at)

    def given(self, held: HeldRun) -> str:
        """Return the ``traceparent`` for a worker that records its attempts itself.

        Empty: this attempt is not recorded.
        """
        found = build_trace(held, self.ratio)
        return "" if found is None else traceparent(*found)

    def completed_elsewhere(self, held: HeldRun, completion: Completion) -> None:
        """Record the tick's span for attempts of such a worker, which does not know about ticks."""
        found = build_trace(held, self.ratio)
        if found is not None:
            self._first(held, completion, found, held.started_at)

    # Requests.

    @contextmanager
    def serving(
        self, method: str, path: str, name: str, headers: Mapping[str, str], clock: Clock
    ) -> Iterator[Callable[[int], None]]:
        """Record a request that is served inside. The yielded function takes the status."""
        sent = headers.get("traceparent", "")
        given = read_traceparent(sent)
        status: int | None = None

        def answered(with_status: int) -> None:
            nonlocal status
            status = with_status

        if not given and (sent or not self._chance()):
            with standing(_UNRECORDED):
                yield answered
            return
        began = clock.now()
        parent = ids_in(given) if given else None
        ids = _new_ids(parent)
        try:
            with standing(_beneath(*ids)):
                yield answered
        finally:
            attributes: Attributes = (
                ("http.request.method", method),
                ("http.route", path),
                ("mainspring.operation", name),
            )
            if status is not None:
                attributes += (("http.response.status_code", status),)
            same = serialize_shared(f"{method} {path}", Span.SPAN_KIND_SERVER, attributes)
            broken = status is None or status >= 500
            self.record(same, ids, parent, (), began, clock.now(), status=build_error_status("") if broken else None)


@contextmanager
def standing(context: "contexts.Context") -> Iterator[None]:
    """Make this the context of everything recorded inside."""
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


@cache
def get_tracing(endpoint: str, ratio: float, service: str, version: str) -> Tracing:
    """Return the tracing object, one per process for all its runtimes."""
    return Tracing(endpoint, ratio, service, version)


def _new_ids(parent: Ids | None) -> Ids:
    return random.getrandbits(128) or 1 if parent is None else parent[0], random.getrandbits(64) or 1


def _beneath(trace_id: int, span_id: int) -> contexts.Context:
    """Return a context in which this span is the current one."""
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)
    return trace.set_span_in_context(NonRecordingSpan(context), contexts.Context())


def _under(runs: Sequence[NewRun], span: Ids) -> list[NewRun]:
    parent = traceparent(*span)
    return [msgspec.structs.replace(run, policy=traced(run.policy, parent)) for run in runs]
