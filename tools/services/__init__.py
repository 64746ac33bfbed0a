"""The servers that tests and benchmarks talk to, run on this machine without containers or systemd.

    python -m tools.services start | stop | remove | status [name …]

Only the standard library is used, so that it works before anything is installed.
"""

from pathlib import Path

from tools.services.postgres import Postgres
from tools.services.service import Service, ServiceUnavailable

__all__ = ["Service", "ServiceUnavailable", "all_services", "ensure"]

ROOT = Path(__file__).parents[2]


def all_services() -> dict[str, Service]:
    kinds: list[type[Service]] = [Postgres]
    return {kind.name: kind(ROOT / ".services") for kind in kinds}


def ensure(name: str) -> str:
    """The address of the running service; installs and starts it if need be. Any number of processes may call."""
    return all_services()[name].ensure()
