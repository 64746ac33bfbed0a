"""Client addresses of requests. Forwarding headers can be forged, so only those of configured proxies are trusted."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from mainspring.core.model.base.errors import Invalid

Network: TypeAlias = IPv4Network | IPv6Network


def read_networks(field: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse networks such as ``10.0.0.0/8``, or single addresses."""
    networks = []
    for text in texts:
        try:
            network = ip_network(text)
        except ValueError:
            raise Invalid(field, f"{text!r} is not a network", "for example 10.0.0.0/8") from None
        if network.prefixlen == 0:
            raise Invalid(field, f"{text} is everybody", "name the proxies")
        networks.append(network)
    return tuple(networks)


def find_client_address(peer: str, forwarded_for: str | None, trusted: Sequence[Network]) -> str:
    """Return the client's address: the peer, or behind trusted proxies the last address that is not a trusted proxy.

    The header is read from the right, as each proxy appends its client: entries further left may be forged.
    """
    found = peer
    for hop in reversed((forwarded_for or "").split(",")):
        if not _is_in(found, trusted):
            break
        try:
            found = str(ip_address(hop.strip()))
        except ValueError:
            break
    return found


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        read = ip_address(address)
    except ValueError:
        return False
    if isinstance(read, IPv6Address) and read.ipv4_mapped is not None:
        read = read.ipv4_mapped
    return any(read in network for network in networks)
