"""Asks the API as fast as it answers, at so little cost that the API has the processor: requests are made beforehand.

Runs in the submitting process. Of an answer it reads the status and the length; the rest is looked at afterwards.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias, cast

import msgspec

from bench.engine.load import Load
from bench.figures import Figures, spread
from bench.sizes import PAYLOAD, QUEUE, TASK

HOST = "127.0.0.1"
#: How long an answer may take before the API is taken for dead.
_PATIENCE = 30
_HEAD_END, _LENGTH = b"\r\n\r\n", b"\r\ncontent-length: "

Answered: TypeAlias = "Callable[[Connection, int, bytes], None]"


class Connection(asyncio.Protocol):
    """Keeps alive, and has one request under way at a time."""

    def __init__(self, answered: Answered) -> None:
        self.asked_at = 0.0
        self._answered = answered
        self._got = b""
        self._transport: asyncio.WriteTransport | None = None
        #: Done when it has ended, with the reason if it was not we who ended it.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self, request: bytes) -> None:
        assert self._transport is not None
        self.asked_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        # Nearly always the whole answer comes at once.
        if self._got:
            data = self._got + data
        body_at = data.find(_HEAD_END) + 4
        length_at = data.find(_LENGTH) + len(_LENGTH)
        if body_at < 4 or len(data) < body_at + int(data[length_at : data.index(b"\r", length_at)]):
            self._got = data
            return
        self._got = b""
        try:
            self._answered(self, int(data[9:12]), data[body_at:])
        except Exception as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the API closed the connection"))

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a load."""

    #: Answers a second, from the end of the warm-up to the last one.
    rate: float
    #: How long they took.
    latency: Figures
    #: Of all jobs that were accepted, those of the warm-up included, in one string: 32 digits each.
    ids: str


async def submit(
    load: Load, port: int, *, seconds: float, warm_up: float, connections: int, batch: int | None
) -> Result:
    """Each connection submits when its last submit was answered: a job, or a batch of so many."""
    request = post("/v1/jobs", job()) if batch is None else post("/v1/jobs/batch", {"jobs": [job()] * batch})
    wanted = 201 if batch is None else 200
    bodies: list[bytes] = []
    latencies: list[float] = []
    since = time.perf_counter() + warm_up
    until = since + seconds

    def answered(connection: Connection, status: int, body: bytes) -> None:
        now = time.perf_counter()
        if status != wanted:
            raise wrong(status, body)
        # Of a job only the id is kept.
        bodies.append(body if batch else body[:42])
        # The last answer of a connection counts, too: of a slow machine it may be the only one.
        if now >= since:
            latencies.append(now - connection.asked_at)
        if now < until:
            connection.ask(request)
        else:
            connection.close()

    opened = [await connect(port, answered) for _ in range(connections)]
    for connection in opened:
        connection.ask(request)
    async with asyncio.timeout(warm_up + seconds + _PATIENCE):
        await asyncio.gather(*(connection.ended for connection in opened))
    return Result(
        rate=len(latencies) / (time.perf_counter() - since),
        latency=spread("api", [latency * 1_000 for latency in latencies]),
        ids="".join(job_id(body) if batch is None else _ids_of(body) for body in bodies),
    )


def job(**more: object) -> dict[str, object]:
    return {"task": TASK, "queue": QUEUE, "payload": msgspec.Raw(PAYLOAD), **more}


def post(path: str, content: object) -> bytes:
    """A request as it goes over the wire."""
    body = msgspec.json.encode(content)
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + _HEAD_END + body


async def connect(port: int, answered: Answered) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(answered), HOST, port)
    return connection


def job_id(body: bytes) -> str:
    """Of a job that was accepted. It comes first: cutting it out is cheaper than reading the whole."""
    if not body.startswith(b'{"jobId":"') or len(body) < 42:
        raise ValueError(f"an answer without a job: {body[:300]!r}")
    return body[10:42].decode()


def wrong(status: int, body: bytes) -> Exception:
    return ValueError(f"{status} was answered: {body[:300]!r}")


class _Item(msgspec.Struct, rename="camel"):
    job_id: str


class _Batch(msgspec.Struct):
    items: list[_Item]


_read_batch = msgspec.json.Decoder(_Batch).decode


def _ids_of(body: bytes) -> str:
    """Of a batch. A job that was refused has no id, and is an error."""
    return "".join(item.job_id for item in _read_batch(body).items)
