"""Uses Django's default database as the store of Mainspring."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from mainspring.core.model.base.errors import Invalid

_FILE = "mainspring.db"
#: Options of Django's database backend that a store address also has.
_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "passfile", "target_session_attrs")


def database_store() -> str:
    """Return the default store: the default database on PostgreSQL, else an SQLite file next to it.

    While Django's tests run, this is the address of the test database. A database in memory gives ``memory:``.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql":
        return _address(connection.settings_dict)
    folder = Path(getattr(settings, "BASE_DIR", ""))
    if connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            return "memory:"
        folder = Path(connection.settings_dict["NAME"]).parent
    return str(folder / _FILE)


def atomic_connection() -> object | None:
    """Return psycopg's connection to the default database inside ``transaction.atomic()`` on PostgreSQL, else None."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor != "postgresql" or not connection.in_atomic_block:
        return None
    found: object = connection.connection
    return found


def _address(database: Mapping[str, Any]) -> str:
    options: Mapping[str, Any] = database.get("OPTIONS") or {}
    name, host, port = (str(database.get(key) or "") for key in ("NAME", "HOST", "PORT"))
    if not name:
        raise Invalid(
            "store",
            f"cannot be read from DATABASES[{DEFAULT_DB_ALIAS!r}], which has no NAME",
            'set MAINSPRING = {"store": "postgresql://user@host/database"}',
        )
    query = {key: str(options[key]) for key in _OPTIONS if key in options}
    if host.startswith("/"):
        query["host"] = host
        host = ""
        if port:
            query["port"] = port
            port = ""
    elif ":" in host:
        host = f"[{host}]"
    user, password = (quote(str(database.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    credentials = user + (f":{password}" if password else "")
    place = (f"{credentials}@" if credentials else "") + host + (f":{port}" if port else "")
    return f"postgresql://{place}/{quote(name, safe='')}" + (f"?{urlencode(query)}" if query else "")
