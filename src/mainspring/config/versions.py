"""Version details for ``mainspring --version``."""

import platform
from importlib.resources import files

from mainspring.core.model.schedules.cron import find_zone_database
from mainspring.core.runtime.build import read_build


def describe_versions() -> list[str]:
    build = read_build()
    return [
        f"commit {build.commit or 'unknown'}{f' of {build.date}' if build.date else ''}",
        f"Python {platform.python_version()}, {platform.platform(terse=True)}",
        f"time zones: {find_zone_database()}",
        f"schema: PostgreSQL {_find_newest_schema('postgres')}, SQLite {_find_newest_schema('sqlite')}",
    ]


def _find_newest_schema(store: str) -> int:
    """Return the newest schema version from file names, because the driver may not be installed."""
    found = files("mainspring.stores").joinpath(store, "migrations").iterdir()
    return max(int(entry.name.split("_")[0]) for entry in found if entry.name.endswith(".sql"))
