"""Access to RabbitMQ with a client library that Mainspring does not use."""

from collections.abc import Iterator
from contextlib import contextmanager

import amqp


@contextmanager
def channel_of(address: str, node: int = 0) -> Iterator[amqp.Channel]:
    """Open a channel on one node of an address."""
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
    """Delete queues and the exchanges of the same names."""
    with channel_of(address) as channel:
        for queue in queues:
            channel.queue_delete(queue)
            channel.exchange_delete(queue)


def read_all(address: str, queue: str) -> list[amqp.Message]:
    """Remove and return all messages of a queue."""
    found: list[amqp.Message] = []
    with channel_of(address) as channel:
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
    return found
