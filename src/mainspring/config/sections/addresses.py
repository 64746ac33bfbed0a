"""Addresses of stores: lists of servers, and display without passwords."""

import msgspec

from mainspring.core.model.base.errors import Invalid


def read_store_servers(store: str) -> tuple[str, ...]:
    """Return the addresses of a sharded store, or none if the store is not a list."""
    if not store.startswith("["):
        return ()
    try:
        addresses = msgspec.json.decode(store, type=tuple[str, ...])
    except (msgspec.DecodeError, ValueError):
        # The message must not repeat the value: it could contain a part of a password.
        raise Invalid("store", "is not a list of addresses in JSON", '["postgresql://…", "postgresql://…"]') from None
    if not addresses or not all(address.startswith(("postgresql://", "postgres://")) for address in addresses):
        raise Invalid("store", "a list names PostgreSQL servers alone", '["postgresql://…", "postgresql://…"]')
    if len(set(addresses)) < len(addresses):
        raise Invalid("store", "names a server twice")
    return addresses


def hide_secrets(store: str) -> str:
    """Return a store's address for display: without passwords and options."""
    if store.startswith("["):
        return ", ".join(map(hide_secrets, read_store_servers(store)))
    scheme, separator, rest = store.partition("://")
    if not separator:
        return store
    place, _, options = rest.partition("?")
    if "@" in options:
        # A password may contain a question mark, so its end is ambiguous.
        return f"{scheme}://…"
    credentials, at, address = place.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{address}"
