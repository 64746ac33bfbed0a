"""PostgreSQL, as ``mainspring bench`` runs it too."""

import importlib.util
import sys
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tools.services.service import Service, ServiceUnavailable

if TYPE_CHECKING:
    from mainspring.bench import local_postgres
else:

    def _load(path: Path) -> ModuleType:
        # By its path: importing it by name runs the package's __init__, which needs libraries.
        spec = importlib.util.spec_from_file_location("mainspring_local_postgres", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    local_postgres = _load(Path(__file__).parents[2] / "src/mainspring/bench/local_postgres.py")

__all__ = ["Postgres", "local_postgres"]


#: Tests make and drop hundreds of databases, and each time all is written to the disk. What a test kills is the server
#: at most: what that has handed to the system outlives it. Where a disk is measured, a server is started for that.
_NOT_FOR_EVER = {"fsync": "off", "full_page_writes": "off"}
__all__ = ["Postgres", "local_postgres"]


class Postgres(Service):
    name = "postgres"
    packages = ("postgresql",)

    @cached_property
    def _server(self) -> "local_postgres.LocalPostgres":
        return local_postgres.LocalPostgres(self.directory, settings=_NOT_FOR_EVER)

    def installed(self) -> bool:
        try:
            local_postgres.find_binaries()
            local_postgres.server_account()
        except local_postgres.PostgresUnavailable:
            return False
        return True

    def running(self) -> bool:
        return self._server.running

    def address(self) -> str:
        return self._server.dsn

    def start(self) -> None:
        try:
            self._server.start()
        except local_postgres.PostgresUnavailable as error:
            raise ServiceUnavailable(str(error)) from error

    def stop(self) -> None:
        self._server.stop()

    def remove(self) -> None:
        self._server.remove()
