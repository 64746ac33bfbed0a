"""Hints: a sealed message opens only with the same key and in the same queue."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.cluster.hints import MESSAGE, Hint, HintCodec, read_rank
from tests.support.builders import a_run

RANKS = st.integers(min_value=-(2**53), max_value=2**53)
QUEUES = st.sampled_from(["default", "mail", "m", "ail"])


@given(RANKS, QUEUES, QUEUES)
def test_a_hint_opens_only_in_its_queue_and_with_its_key(rank: int, queue: str, other: str) -> None:
    sealer = HintCodec(b"key")
    hint = Hint(a_run().id, queue, rank)
    message = sealer.seal(hint)
    assert len(message) == MESSAGE
    assert read_rank(message) == rank
    assert sealer.open(queue, message) == hint
    assert (sealer.open(other, message) is None) is (other != queue)
    assert HintCodec(b"another").open(queue, message) is None


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_hint(message: bytes) -> None:
    assert HintCodec(b"key").open("default", message) is None


@given(st.integers(0, MESSAGE - 1), st.integers(1, 255))
def test_a_changed_byte_is_detected(index: int, change: int) -> None:
    sealer = HintCodec(b"key")
    message = bytearray(sealer.seal(Hint(a_run().id, "default", 7)))
    message[index] ^= change
    assert sealer.open("default", bytes(message)) is None


def test_a_hint_is_sealed_deterministically() -> None:
    run = a_run().id
    assert HintCodec(b"key").seal(Hint(run, "q", 1, 3, "a")) == HintCodec(b"key").seal(Hint(run, "q", 1))
