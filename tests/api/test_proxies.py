"""The address of a client behind trusted proxies."""

import pytest

from mainspring.core.model.access.networks import find_client_address, read_networks

PROXIES = read_networks("api.trusted_proxies", ["10.0.0.0/8", "192.168.1.7", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "header", "found"),
    [
        ("203.0.113.9", None, "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "6.6.6.6, 198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "6.6.6.6, 198.51.100.1, 192.168.1.7", "198.51.100.1"),
        ("10.1.2.3", "6.6.6.6, 10.9.9.9, 203.0.113.1 , 10.0.0.1", "203.0.113.1"),
        ("10.1.2.3", "not an address", "10.1.2.3"),
        ("10.1.2.3", "198.51.100.1, garbage, 10.0.0.1", "10.0.0.1"),
        ("10.1.2.3", ",,,", "10.1.2.3"),
        ("192.168.1.8", "198.51.100.1", "192.168.1.8"),
        ("::ffff:10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("fd00::1", "2001:db8::7", "2001:db8::7"),
        ("", "198.51.100.1", ""),
    ],
)
def test_forwarded_addresses_count_only_from_trusted_proxies(peer: str, header: str | None, found: str) -> None:
    assert find_client_address(peer, header, PROXIES) == found


def test_without_trusted_proxies_the_forwarded_address_is_ignored() -> None:
    assert find_client_address("127.0.0.1", "198.51.100.1", ()) == "127.0.0.1"
