"""Attributes, links and exceptions of spans, in the form of OTLP."""

from functools import lru_cache
from typing import TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import HeldRun

_LONGEST_ERROR = 4_000
#: Flags of a recorded span, and of one whose parent may be in another process.
RECORDED, FROM_ELSEWHERE = 0x101, 0x301
Attributes: TypeAlias = tuple[tuple[str, str | int], ...]


@lru_cache(1_000)
def share_attributes(
    name: str, kind: str, operation: str, task: str, queue: str, tenant: str, *more: tuple[str, str | int]
) -> bytes:
    about: Attributes = (("mainspring.task", task), ("mainspring.tenant", tenant))
    side = Span.SPAN_KIND_CONSUMER if kind == "process" else Span.SPAN_KIND_PRODUCER
    return serialize_shared(name, side, (*describe_messaging(kind, operation, queue), *about, *more))


def describe_messaging(kind: str, operation: str, queue: str) -> Attributes:
    """Return attributes by OpenTelemetry's conventions for messaging."""
    return (
        ("messaging.system", "mainspring"),
        ("messaging.operation.type", kind),
        ("messaging.operation.name", operation),
        ("messaging.destination.name", queue),
    )


def describe_run(held: HeldRun) -> Attributes:
    """Return the attributes that only this run has."""
    run: Attributes = (("messaging.message.id", held.id),)
    return run if held.job_id is None else (*run, ("mainspring.job_id", held.job_id))


def encode_attribute(name: str, value: str | int) -> KeyValue:
    return KeyValue(
        key=name, value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
    )


def build_link(trace_id: int, span_id: int) -> Span.Link:
    return Span.Link(trace_id=trace_id.to_bytes(16, "big"), span_id=span_id.to_bytes(8, "big"), flags=FROM_ELSEWHERE)


def build_exception(text: str, at: Instant) -> Span.Event:
    last = text.rpartition("\n")[2]
    kind, _, message = last.partition(": ")
    attributes: Attributes = (
        ("exception.type", to_text(kind)),
        ("exception.message", to_text((message or last)[:_LONGEST_ERROR])),
        ("exception.stacktrace", to_text(text[-_LONGEST_ERROR:])),
    )
    return Span.Event(
        name="exception", time_unix_nano=at * 1_000, attributes=[encode_attribute(*one) for one in attributes]
    )


def build_error_status(why: str) -> Status:
    return Status(code=Status.STATUS_CODE_ERROR, message=to_text(why[:_LONGEST_ERROR]))


def to_text(text: str) -> str:
    """Replace invalid characters (lone surrogates), which cannot be serialized."""
    return text.encode("utf-8", "replace").decode()


@lru_cache(1_000)
def serialize_shared(name: str, kind: Span.SpanKind.ValueType, attributes: Attributes) -> bytes:
    """Serialize the part that many spans share."""
    same: bytes = Span(
        name=name, kind=kind, attributes=[encode_attribute(*one) for one in attributes]
    ).SerializeToString()
    return same
