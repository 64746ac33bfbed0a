"""The Kafka client survives a broker that no longer coordinates a group."""

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import pytest

from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from tests.support.processes import PYTHONPATH

_OFFSET_FETCH, _NOT_COORDINATOR = 9, 16
_NOT_COORDINATOR_TEXT = "Kafka does not answer: Failed to get committed offsets: Broker: Not coordinator"
_READ_LAG = """
import asyncio, sys
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.integrations.kafka.address import parse_kafka

async def read_lag():
    try:
        print(await KafkaAdmin(parse_kafka(sys.argv[1], "test")).lag(sys.argv[2], [sys.argv[2]]))
    except BrokerUnavailable as error:
        print("unavailable:", error)

asyncio.run(read_lag())
"""


class MovedGroup:
    """A proxy of one broker whose answers to OffsetFetch say that the group has moved to another broker."""

    def __init__(self, broker: tuple[str, int], failures: int) -> None:
        """``failures``: how many requests are answered this way."""
        self._broker = broker
        self._failures = failures
        self._port = 0
        self.failed = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Yield the address of the proxy."""
        async with await asyncio.start_server(self._forward, "127.0.0.1", 0) as server:
            self._port = server.sockets[0].getsockname()[1]
            yield f"kafka://127.0.0.1:{self._port}"

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(*self._broker)
        versions: dict[bytes, int] = {}

        async def forward_requests() -> None:
            async for frame in _read_frames(reader):
                key, version = struct.unpack(">hh", frame[:4])
                if key == _OFFSET_FETCH:
                    versions[frame[4:8]] = version
                broker_writer.write(struct.pack(">i", len(frame)) + frame)

        async def forward_responses() -> None:
            async for frame in _read_frames(broker_reader):
                # Clients find the broker at the address of the proxy.
                host, port = self._broker
                changed = frame.replace(
                    host.encode() + struct.pack(">i", port), host.encode() + struct.pack(">i", self._port)
                )
                if (version := versions.pop(frame[:4], None)) is not None and self.failed < self._failures:
                    self.failed += 1
                    # The error of the group is followed by the tags of the group, from version 8 on, and of the answer.
                    end = len(changed) - (2 if version >= 8 else 1 if version >= 6 else 0)
                    changed = changed[: end - 2] + struct.pack(">h", _NOT_COORDINATOR) + changed[end:]
                writer.write(struct.pack(">i", len(changed)) + changed)

        async def forward_all_requests() -> None:
            await forward_requests()
            broker_writer.close()

        await asyncio.gather(forward_all_requests(), forward_responses())
        writer.close()
        with suppress(ConnectionError):
            await broker_writer.wait_closed()
            await writer.wait_closed()


async def _read_frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            [size] = struct.unpack(">i", await reader.readexactly(4))
            yield await reader.readexactly(size)


async def _read_lag_in_a_process(address: str, topic: str) -> tuple[int | None, str]:
    """In a process of its own, because the client has ended processes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _READ_LAG, address, topic),
        env={"PYTHONPATH": PYTHONPATH},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode().strip()


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, "0"), (1, "0"), (1_000, f"unavailable: {_NOT_COORDINATOR_TEXT}")]
)
async def test_reading_the_lag_survives_a_broker_that_no_longer_coordinates_the_group(
    address_of: Callable[[str], str], failures: int, expected: str
) -> None:
    address = address_of("kafka")
    [broker] = parse_kafka(address, "test").nodes
    topic = f"test-{uuid4().hex}"
    await KafkaAdmin(parse_kafka(address, "test")).make_topics([topic], 2, {})
    moved = MovedGroup(broker, failures)
    async with moved.serve() as proxy:
        assert await _read_lag_in_a_process(proxy, topic) == (0, expected)
    assert moved.failed >= min(failures, 1)
