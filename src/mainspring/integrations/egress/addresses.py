"""The addresses that calls of users may reach: public ones, and networks in the settings."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from mainspring.core.model.base.errors import Invalid

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

#: Internal networks that some version of ``ipaddress`` counts as global.
_INWARDS: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",  # a carrier's internal network; Alibaba's metadata
            "168.63.129.16/32",  # Azure's host
            "192.0.0.0/24",  # Oracle's metadata
            "192.88.99.0/24",
            "240.0.0.0/4",
            "::/96",
            "64:ff9b::/96",  # these four carry an IPv4 address inside
            "64:ff9b:1::/48",
            "2001::/32",
            "2002::/16",
            "fec0::/10",
        ),
    )
)


def parse_networks(networks: Sequence[str], where: str) -> tuple[Network, ...]:
    try:
        return tuple(map(ip_network, networks))
    except ValueError as error:
        raise Invalid(where, str(error), "for example 10.1.0.0/16") from None


def unwrap_ipv4(address: Address) -> Address:
    """Return the IPv4 address inside an IPv4-mapped IPv6 address such as ``::ffff:10.0.0.1``."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def parse_literal(host: str) -> Address | None:
    """Return the address that a host spells out, or None for a name.

    ``2130706433``, ``0177.0.0.1`` and ``0x7f.1`` are refused, because operating systems read them as addresses.
    """
    try:
        return unwrap_ipv4(ip_address(host))
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        if last.isdigit() or last.startswith("0x"):
            raise Invalid("url", f"{host!r} is not an address", "four decimal numbers, as in 192.0.2.1") from None
        return None


def explain_refusal(address: Address, allowed: Sequence[Network]) -> str | None:
    """Return the reason why an address may not be called, or None if it may."""
    if any(address in network for network in allowed):
        return None
    kinds = {
        "unspecified": address.is_unspecified,
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "private": address.is_private,
        "reserved": address.is_reserved or any(address in network for network in _INWARDS),
    }
    return next((kind for kind, is_one in kinds.items() if is_one), None if address.is_global else "not public")
