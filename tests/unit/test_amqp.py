"""AMQP frames are encoded and decoded as by pamqp; broker addresses and queue names are parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from mainspring.core.model.base.addresses import Tls
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.rabbitmq import wire
from mainspring.integrations.rabbitmq.address import Kind, parse_rabbitmq
from mainspring.integrations.rabbitmq.client import Client
from mainspring.integrations.rabbitmq.errors import ConnectionLost
from mainspring.integrations.rabbitmq.queues import QueueDeclarer
from tests.support.builders import a_run

TAGS = st.integers(1, 2**63 - 1)
CHANNELS = st.integers(1, 65_535)


@given(CHANNELS, TAGS, st.booleans())
def test_acks_nacks_and_rejects_are_encoded_as_by_pamqp(channel: int, tag: int, multiple: bool) -> None:
    assert wire.ack_frame(channel, tag, multiple=multiple) == frame.marshal(commands.Basic.Ack(tag, multiple), channel)
    assert wire.nack_frame(channel, tag) == frame.marshal(commands.Basic.Nack(tag, False, True), channel)
    assert wire.reject_frame(channel, tag) == frame.marshal(commands.Basic.Reject(tag, False), channel)


@given(CHANNELS, st.binary(max_size=300))
def test_a_body_is_encoded_as_by_pamqp(channel: int, content: bytes) -> None:
    before, after = wire.build_body_frame(channel, len(content))
    whole = frame.marshal(body.ContentBody(content), channel) if content else b""
    assert before + content + after == whole


@given(CHANNELS, TAGS, st.text("abc.", max_size=100), st.booleans())
def test_deliveries_and_confirms_are_decoded_as_by_pamqp(channel: int, tag: int, name: str, flag: bool) -> None:
    sent = [
        commands.Basic.Deliver(consumer_tag=name, delivery_tag=tag, redelivered=flag, exchange="", routing_key=name),
        commands.Basic.Ack(tag, flag),
        commands.Basic.Nack(tag, flag),
    ]
    content = header.ContentHeader(body_size=tag, properties=commands.Basic.Properties(priority=3))
    data = b"".join(frame.marshal(one, channel) for one in sent) + frame.marshal(content, channel)
    deliver, ack, nack, head = wire.FrameReader().feed(data)
    assert [found[:2] for found in (deliver, ack, nack, head)] == [(1, channel)] * 3 + [(2, channel)]
    assert (wire.read_index(deliver[2]), wire.read_deliver(deliver[2])) == (wire.DELIVER, tag)
    assert (wire.read_index(ack[2]), wire.read_confirm(ack[2])) == (wire.ACK, (tag, flag))
    assert (wire.read_index(nack[2]), wire.read_confirm(nack[2])) == (wire.NACK, (tag, flag))
    assert wire.read_size(head[2]) == tag


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.data())
def test_frames_are_found_wherever_the_stream_is_cut(bodies: list[bytes], data: st.DataObject) -> None:
    whole = [one or b"-" for one in bodies]
    stream = b"".join(frame.marshal(body.ContentBody(one), 7) for one in whole) + wire.heartbeat_frame()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, found = wire.FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == [(wire.BODY, 7, one) for one in whole] + [(wire.HEARTBEAT, 0, b"")]


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x01\x00\x01\x00\x00\x00\x01xx", b"AMQP\0\0\1\0"]
)
def test_data_that_is_not_amqp_is_rejected_at_once(data: bytes) -> None:
    with pytest.raises(ConnectionLost):
        wire.FrameReader().feed(data)


def test_a_broker_address_sets_nodes_credentials_tls_and_queue_kind() -> None:
    broker = parse_rabbitmq("amqps://me:p%40ss@a,b:1,[::1]:2/my%2Fhost?kind=quorum&ssl_ca_certs=/ca.pem", "field")
    assert broker.nodes == (("a", 5671), ("b", 1), ("::1", 2))
    assert (broker.user, broker.password, broker.vhost) == ("me", "p@ss", "my/host")
    assert (broker.tls, broker.kind) == (Tls(authority="/ca.pem"), "quorum")
    assert "p@ss" not in repr(broker)
    plain = parse_rabbitmq("amqp://a", "field")
    assert (plain.nodes, plain.user, plain.vhost, plain.tls, plain.kind) == (
        (("a", 5672),),
        "guest",
        "/",
        None,
        "classic",
    )
    assert parse_rabbitmq("amqp://a/", "field").vhost == parse_rabbitmq("amqp://a/%2F", "field").vhost == "/"


@pytest.mark.parametrize(
    "text",
    [
        "amqp://",
        "amqp://me@a",
        "amqp://a/b/c",
        "amqp://a?kind=stream",
        "amqp://a?heartbeat=3",
        "amqp://a?ssl_ca_certs=/x",
        "amqp://a:b",
        "amqp://a#b",
        f"amqp://a/{'v' * 200}",
    ],
)
def test_an_invalid_broker_address_is_rejected_without_showing_the_password(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_rabbitmq(text.replace("amqp://", "amqp://u:hush@") if "@" not in text else text, "field")
    assert "hush" not in str(raised.value)


def queues(kind: Kind) -> QueueDeclarer:
    broker = parse_rabbitmq(f"amqp://a?kind={kind}", "")
    return QueueDeclarer(Client(broker, SystemClock(), SECOND), broker, "store")


def test_priorities_map_to_rabbitmq_priorities_or_to_bands_of_quorum_queues() -> None:
    def routes(kind: Kind) -> list[tuple[str, int]]:
        return [queues(kind).find(Hint(a_run().id, "mail", 0, priority)) for priority in range(11)]

    assert routes("classic") == [
        ("mainspring.store.queue.mail", number) for number in (5, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    ]
    assert [name[17:19] for name, _ in routes("quorum")] == ["p2"] + ["p1"] * 3 + ["p2"] * 3 + ["p3"] * 4


def test_an_unusual_queue_name_maps_to_a_valid_and_unique_amqp_name() -> None:
    [name] = queues("classic").names("q" * 150 + "ü")
    commands.Queue.Declare(queue=name).validate()
    assert [name] != list(queues("classic").names("q" * 150 + "ä"))
    # A queue named "dead" does not collide with the dead-letter queue.
    assert queues("classic").names("dead") != (queues("classic").dead,)
