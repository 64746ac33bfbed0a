"""The messages between a worker and its child processes: MessagePack frames, each preceded by its length."""

from typing import TypeAlias

import msgspec

from mainspring.core.model.runs.cause import Cause
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.usage import AttemptCost
from mainspring.core.worker.reporting.attempt_reporter import ReportBatch

_LENGTH = 4


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first frame to a child."""

    #: The worker's module search path: the child can import the same modules.
    path: list[str]
    #: Report memory use at the end of every call.
    measures_memory: bool
    #: The descriptor of the liveness, and after how many seconds without a change the child ends.
    liveness: int
    silence: int
    #: Passed to the application's ``adopt`` before anything starts.
    adopts: bytes
    #: Capture what handlers print and log.
    captures: bool
    #: It runs one call at a time, so the resource use of the process is that of the call.
    alone: bool = False
    #: The arguments of the worker's tracing object. None: no tracing.
    tracing: tuple[str, float, str, str] | None = None
    #: The worker's log settings: the level, whether it is for people, and whether task output is included. None: as
    #: configured by the application.
    log: tuple[str, bool, bool] | None = None


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Run this. The key is chosen by the worker, because the same run may come twice."""

    key: int
    held: HeldRun


class Interrupt(msgspec.Struct, frozen=True, tag="interrupt"):
    """Stop a call in a way that lets it clean up."""

    key: int
    cancelled: bool
    why: str


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """There is nothing more to do: exit."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The application is loaded."""


class StartRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The application could not be loaded."""

    error: str


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """A running call sends a sign of life, and possibly reports."""

    key: int
    batch: ReportBatch


class AttemptEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A call has ended."""

    key: int
    result: bytes | None
    error: str | None
    memory: int
    cause: Cause
    spent: AttemptCost | None = None
    #: The handler closed descriptors that the child needs: it takes no more runs.
    broken: bool = False


ToChild: TypeAlias = Begin | Start | Interrupt | Finish
FromChild: TypeAlias = Ready | StartRefused | Reported | AttemptEnded

_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def encode(message: ToChild | FromChild) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


def decode_to_child(body: bytes) -> ToChild:
    return _to_child.decode(body)


def decode_from_child(body: bytes) -> FromChild:
    return _from_child.decode(body)


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the frames that are complete now."""
        buffer = self._buffer
        buffer += data
        complete = []
        at = 0
        while len(buffer) - at >= _LENGTH:
            end = at + _LENGTH + int.from_bytes(buffer[at : at + _LENGTH], "big")
            if end > len(buffer):
                break
            complete.append(bytes(buffer[at + _LENGTH : end]))
            at = end
        del buffer[:at]
        return complete
