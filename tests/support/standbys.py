"""A PostgreSQL server on this machine with standbys by streaming replication."""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.services.local_postgres import DISK, PORTS, LocalPostgres, server_account

#: Small, because three of them run at the same time as the servers of other tests.
SETTINGS = {"shared_buffers": "32MB", "max_wal_size": "256MB", "max_connections": "60"}


class Standby(LocalPostgres):
    """Replicates another server until it is promoted."""

    def __init__(self, directory: Path, primary: LocalPostgres, name: str, settings: Mapping[str, str]) -> None:
        # The primary knows a synchronous standby by this name.
        super().__init__(directory, port=random.choice(PORTS), settings=dict(settings) | {"cluster_name": name})
        self._primary = primary

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if account := server_account():
            shutil.chown(self.directory, *account)
        where = ["--host=127.0.0.1", f"--port={self._primary.port}", "--username=postgres"]
        options = [f"--pgdata={self.data}", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        # The PATH may have links to only some of the programs.
        self.binaries = (self.binaries / "pg_ctl").resolve().parent
        self._must(self._run("pg_basebackup", *where, *options))

    def promote(self) -> None:
        self._must(self._control("promote"))


@contextlib.contextmanager
def primary_and_standbys(*names: str) -> Iterator[tuple[LocalPostgres, list[Standby]]]:
    """Start a primary with these standbys; remove them at the end."""
    directory = Path(tempfile.mkdtemp(prefix="mainspring-standbys-", dir=DISK))
    shutil.chown(directory, *(server_account() or (None, None)))
    primary = LocalPostgres(directory / "primary", port=random.choice(PORTS), settings=SETTINGS)
    standbys = [Standby(directory / name, primary, name, SETTINGS) for name in names]
    try:
        for server in (primary, *standbys):
            server.start()
        yield primary, standbys
    finally:
        for server in (*standbys, primary):
            server.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)
