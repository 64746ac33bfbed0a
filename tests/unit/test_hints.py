"""Hints: a sealed message opens only with the same key and in the same queue."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.cluster.hints import MESSAGE, Hint, HintCodec, read_rank
from tests.support.builders import a_run

RANKS = st.integers(min_value=-(2**53), max_value=2**53)
QUEUES = st.sampled_from(["default", "mail", "m", "ail"])


@given(RANKS, QUEUES, QUEUES)
def test_a_hint_is_decoded_only_in_its_queue_and_with_its_key(rank: int, queue: str, other: str) -> None:
    codec = HintCodec(b"key")
    hint = Hint(a_run().id, queue, rank)
    message = codec.encode(hint)
    assert len(message) == MESSAGE
    assert read_rank(message) == rank
    assert codec.decode(queue, message) == hint
    assert (codec.decode(other, message) is None) is (other != queue)
    assert HintCodec(b"another").decode(queue, message) is None


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_hint(message: bytes) -> None:
    assert HintCodec(b"key").decode("default", message) is None


@given(st.integers(0, MESSAGE - 1), st.integers(1, 255))
def test_a_changed_byte_is_detected(index: int, change: int) -> None:
    codec = HintCodec(b"key")
    message = bytearray(codec.encode(Hint(a_run().id, "default", 7)))
    message[index] ^= change
    assert codec.decode("default", bytes(message)) is None


def test_a_hint_is_sealed_deterministically() -> None:
    run = a_run().id
    assert HintCodec(b"key").encode(Hint(run, "q", 1, 3, "a")) == HintCodec(b"key").encode(Hint(run, "q", 1))
