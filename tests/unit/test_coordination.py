"""Which engine grants shards: how it is written, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.adapters.coordination.table import decode_owners, encode_owners
from mainspring.domain.coordination import Engine, read_coordination
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import SessionId
from mainspring.settings import Settings, load


def test_the_store_needs_nothing_else() -> None:
    assert read_coordination("store") is None
    assert load(environment={}).coordination == "store"


@pytest.mark.parametrize(
    ("text", "kind", "nodes", "root"),
    [
        ("etcd://a:1,b:2,c", "etcd", (("a", 1), ("b", 2), ("c", 2379)), "mainspring"),
        ("etcd://[::1]:9,10.0.0.1/shared/production", "etcd", (("::1", 9), ("10.0.0.1", 2379)), "shared/production"),
        ("zookeeper://zk-1.example.org,zk-2:22/x", "zookeeper", (("zk-1.example.org", 2181), ("zk-2", 22)), "x"),
        ("redis://:secret@cache:7/3", "redis", (("cache", 7),), ""),
        ("rediss://cache", "redis", (("cache", 6379),), ""),
        ("rediss://cache/0?ssl_ca_certs=/etc/ca.pem", "redis", (("cache", 6379),), ""),
    ],
)
def test_an_engine_has_nodes_and_a_place_in_them(
    text: str, kind: str, nodes: tuple[tuple[str, int], ...], root: str
) -> None:
    assert read_coordination(text) == Engine(kind=kind, url=text, nodes=nodes, root=root)


def test_etcd_may_have_a_user() -> None:
    found = read_coordination("etcd://me:p%40ss@a")
    assert found is not None
    assert found.credentials == ("me", "p@ss")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no engine"),
        ("consul://a", "is no engine"),
        ("etcd:a", "is no engine"),
        ("etcd://", "is no engine"),
        ("etcd://a:0", "'a:0' is not a host with its port"),
        ("etcd://a:70000", "'a:70000' is not a host with its port"),
        ("etcd://a,,b", "'' is not a host with its port"),
        ("etcd://a b", "'a b' is not a host with its port"),
        ("etcd://a/..?x", "has '[?]x' at its end"),
        ("etcd://a/b c", "cannot be what its keys are filed under"),
        ("etcd://me@a", "a user without a password"),
        ("zookeeper://me:secret@a", "zookeeper is not given a user"),
        ("redis://a,b", "several servers of Redis"),
        ("redis://a/production", "'production' is not the number of a database"),
        ("redis://a?db=x", "has 'db' at its end"),
        ("redis://a?ssl_ca_certs=/etc/ca.pem", "has 'ssl_ca_certs' at its end"),
        ("rediss://a?password=secret", "has 'password' at its end"),
        ("redis://a#x", "has '#x' at its end"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=f"coordination: .*{reason}") as refused:
        load({"coordination": text}, {})
    assert "secret" not in str(refused.value)


def test_a_password_is_not_shown() -> None:
    assert "hush" not in repr(Settings(coordination="etcd://me:hush@a"))


@given(st.dictionaries(st.integers(0, 16_383), st.integers(1, 10**12).map(SessionId), max_size=50))
def test_a_table_of_owners_comes_back_as_it_was(owners: dict[int, SessionId]) -> None:
    assert decode_owners(encode_owners(owners)) == owners
    assert decode_owners(b"") == {}
