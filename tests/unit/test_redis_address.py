"""Parsing of Redis addresses."""

import pytest

from mainspring.config.loading import load
from mainspring.core.model.base.addresses import Tls
from mainspring.core.model.base.errors import Invalid
from mainspring.integrations.redis.address import RedisAddress, parse_redis


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://a", RedisAddress(kind="server", nodes=(("a", 6379),))),
        ("redis://[::1]:7/3", RedisAddress(kind="server", nodes=(("::1", 7),), database=3)),
        ("redis://:p%40ss@a", RedisAddress(kind="server", nodes=(("a", 6379),), password="p@ss")),
        ("redis://me:x@a/", RedisAddress(kind="server", nodes=(("a", 6379),), username="me", password="x")),
        ("rediss://a", RedisAddress(kind="server", nodes=(("a", 6379),), tls=Tls())),
        (
            "redis+sentinel://a,b:7/main/2",
            RedisAddress(kind="sentinel", nodes=(("a", 26_379), ("b", 7)), master="main", database=2),
        ),
        ("redis+sentinel://a/main", RedisAddress(kind="sentinel", nodes=(("a", 26_379),), master="main")),
        ("redis+cluster://a:1,b", RedisAddress(kind="cluster", nodes=(("a", 1), ("b", 6379)))),
        (
            "rediss+cluster://:x@a?ssl_ca_certs=/etc/ca.pem",
            RedisAddress(kind="cluster", nodes=(("a", 6379),), password="x", tls=Tls(authority="/etc/ca.pem")),
        ),
    ],
)
def test_an_address_is_parsed(text: str, expected: RedisAddress) -> None:
    assert parse_redis(text, "dispatch.broker") == expected
    assert load({}, {"MAINSPRING_DISPATCH_BROKER": text}).dispatch.broker == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("redis+ring://a", "is not the address"),
        ("redis+sentinel://", "is not the address"),
        ("redis+sentinel://a", "what Sentinels call the master"),
        ("redis+sentinel://a/main/x", "'x' is not the number"),
        ("redis+cluster://a/0", "a cluster has one alone"),
        ("redis+cluster://a?ssl_ca_certs=x", "which has no meaning"),
        ("redis://a,b", "several servers"),
        ("redis://a/x", "'x' is not the number"),
    ],
)
def test_an_invalid_address_is_rejected_with_its_reason(text: str, reason: str) -> None:
    for setting in ("BROKER", "STATUS_CACHE"):
        with pytest.raises(Invalid, match=reason):
            load({}, {f"MAINSPRING_DISPATCH_{setting}": text})


def test_addresses_and_settings_do_not_show_passwords() -> None:
    assert "hush" not in repr(parse_redis("redis+cluster://:hush@a", "dispatch.broker"))
    assert "hush" not in repr(load({}, {"MAINSPRING_DISPATCH_STATUS_CACHE": "redis://:hush@a"}))
