"""Encodes values as text of a column or of a batch. Payloads and results are stored byte for byte."""

from functools import lru_cache

import msgspec

from mainspring.core.model.limits.limits import BREAKER
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.schedules.job import JobSpec

#: No JSON text begins with this character.
_MARK = "\x01"

_encoder = msgspec.json.Encoder()


def encode(value: object) -> str:
    return _encoder.encode(value).decode()


def encode_bytes(content: bytes) -> str:
    """Encode bytes as text: text stays as it is, other bytes become a mark and hexadecimal digits."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _MARK + content.hex()
    # SQLite's text functions stop at a zero character.
    return _MARK + content.hex() if "\x00" in text or text[:1] == _MARK else text


def decode_bytes(text: str) -> bytes:
    return bytes.fromhex(text[1:]) if text[:1] == _MARK else text.encode()


@lru_cache(maxsize=10_000)
def encode_policy(policy: RunPolicy) -> str | None:
    """Encode a policy as it is stored in a body; None if every field has its default."""
    return None if policy == DEFAULT_POLICY else encode(policy)


@lru_cache(maxsize=10_000)
def decode_policy(text: str | None) -> RunPolicy:
    return DEFAULT_POLICY if text is None else msgspec.json.decode(text, type=RunPolicy)


def encode_about(about: About | None) -> str | None:
    return None if about is None else encode(about)


def decode_about(text: str | None) -> About | None:
    return None if text is None else msgspec.json.decode(text, type=About)


@lru_cache(maxsize=10_000)
def decode_spec(text: str) -> JobSpec:
    return msgspec.json.decode(text, type=JobSpec)


@lru_cache(maxsize=10_000)
def encode_limits(tenant: str, task: str, policy: RunPolicy) -> str | None:
    """Encode the limits of a run, a breaker first; None for most runs."""
    limits = policy.limiters(tenant, task)
    if not limits:
        return None
    first = sorted(limits, key=lambda limit: limit.kind != BREAKER)
    return encode([(limit.kind, limit.number, limit.most, limit.per, limit.pause) for limit in first])


def encode_label_set(requires: tuple[str, ...]) -> str | None:
    """Encode the label set that a run requires; None if it is empty."""
    return encode(requires) if requires else None
