"""RabbitMQ as somebody else sees it: by a client that is not ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import amqp


@contextmanager
def channel_of(address: str, node: int = 0) -> Iterator[amqp.Channel]:
    """On one node of an address that may name several."""
    credentials, _, nodes = address.removeprefix("amqp://").partition("@")
    user, _, password = credentials.partition(":")
    place = nodes.partition("/")[0].split(",")[node]
    with amqp.Connection(place, user, password, read_timeout=60) as opened:
        yield opened.channel()


def publish(address: str, queue: str, body: bytes) -> None:
    with channel_of(address) as channel:
        channel.confirm_select()
        channel.basic_publish_confirm(amqp.Message(body), routing_key=queue)


def delete(address: str, *queues: str) -> None:
    """With the exchanges of the same names."""
    with channel_of(address) as channel:
        for queue in queues:
            channel.queue_delete(queue)
            channel.exchange_delete(queue)


def read_all(address: str, queue: str) -> list[amqp.Message]:
    """Everything that is in a queue now; it is empty after that."""
    found: list[amqp.Message] = []
    with channel_of(address) as channel:
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
    return found
