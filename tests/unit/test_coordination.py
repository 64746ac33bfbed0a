"""Parsing of the ``coordination`` setting, and the encoded table of shard owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.config.loading import load
from mainspring.config.settings import Settings
from mainspring.core.model.base.addresses import Tls
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.coordination import CoordinatorAddress, read_coordination
from mainspring.integrations.shard_table import decode_owners, encode_owners


def test_the_store_is_the_default_coordinator() -> None:
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
def test_a_coordinator_address_has_nodes_and_a_root(
    text: str, kind: str, nodes: tuple[tuple[str, int], ...], root: str
) -> None:
    found = read_coordination(text)
    assert found is not None
    assert (found.kind, found.url, found.nodes, found.root) == (kind, text, nodes, root)


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_a_coordinator_address_may_contain_credentials(kind: str) -> None:
    found = read_coordination(f"{kind}://me:p%40ss@a")
    assert found is not None
    assert found.credentials == ("me", "p@ss")
    assert found.tls is None


@pytest.mark.parametrize(("scheme", "port"), [("etcds", 2379), ("zookeepers", 2281)])
def test_a_scheme_that_ends_in_s_enables_tls(scheme: str, port: int) -> None:
    assert read_coordination(
        f"{scheme}://a/x?ssl_ca_certs=ca.pem&ssl_certfile=c.pem&ssl_keyfile=k.pem"
    ) == CoordinatorAddress(
        kind=scheme.removesuffix("s"),
        url=f"{scheme}://a/x?ssl_ca_certs=ca.pem&ssl_certfile=c.pem&ssl_keyfile=k.pem",
        nodes=(("a", port),),
        root="x",
        tls=Tls(authority="ca.pem", certificate="c.pem", key="k.pem"),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no known coordinator"),
        ("consul://a", "names no known coordinator"),
        ("etcd:a", "names no known coordinator"),
        ("etcd://", "names no known coordinator"),
        ("etcd://a:0", "'a:0' is not a host with its port"),
        ("etcd://a:70000", "'a:70000' is not a host with its port"),
        ("etcd://a,,b", "'' is not a host with its port"),
        ("etcd://a b", "'a b' is not a host with its port"),
        ("etcd://a/..?x", "has 'x' at its end"),
        ("etcd://a/b c", "cannot be what its keys are filed under"),
        ("etcd://me@a", "a user without a password"),
        ("zookeeper://me@a", "a user without a password"),
        ("etcd://a?ssl_ca_certs=/etc/ca.pem", "has 'ssl_ca_certs' at its end"),
        ("zookeepers://a?password=secret", "has 'password' at its end"),
        ("redis://a,b", "several servers of Redis"),
        ("redis://a/production", "'production' is not the number of a database"),
        ("redis://a?db=x", "has 'db' at its end"),
        ("redis://a?ssl_ca_certs=/etc/ca.pem", "has 'ssl_ca_certs' at its end"),
        ("rediss://a?password=secret", "has 'password' at its end"),
        ("redis://a#x", "has '#x' at its end"),
        ("etcds://a?ssl_keyfile=k.pem", "has 'ssl_keyfile' without the certificate"),
    ],
)
def test_an_invalid_coordinator_address_is_rejected_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=f"coordination: .*{reason}") as refused:
        load({"coordination": text}, {})
    assert "secret" not in str(refused.value)


def test_settings_do_not_show_the_password_of_a_coordinator() -> None:
    assert "hush" not in repr(Settings(coordination="etcd://me:hush@a"))


@given(st.dictionaries(st.integers(0, 16_383), st.integers(1, 10**12).map(SessionId), max_size=50))
def test_a_table_of_shard_owners_is_decoded_as_it_was_encoded(owners: dict[int, SessionId]) -> None:
    assert decode_owners(encode_owners(owners)) == owners
    assert decode_owners(b"") == {}
