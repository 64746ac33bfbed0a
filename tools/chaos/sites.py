"""Where the store lies: a server alone, one with a synchronous standby, or one on a small disk."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import asyncpg

from tools.services.local_postgres import DISK, LocalPostgres, free_port, server_account

_MEGABYTE = 1 << 20
#: The ports of servers are chosen from here on.
_PORT = 27_000


class Site:
    """A durable PostgreSQL server in a directory of its own. All calls but those that say so block."""

    settings: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mainspring-chaos-", dir=DISK))
        self.directory.chmod(0o755)

    def open(self) -> LocalPostgres:
        self.server = self._new_server("first")
        self.server.start()
        return self.server

    @property
    def servers(self) -> list[LocalPostgres]:
        """The one that writes comes first."""
        return [self.server]

    async def replicate(self) -> None:
        """From here on, what is committed is safe; a single server has no standby to wait for."""

    def close(self) -> None:
        self.server.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _new_server(self, name: str) -> LocalPostgres:
        return LocalPostgres(self.directory / name, port=free_port(_PORT), settings=self.settings)


class StandbySite(Site):
    """Commits wait for the standby, so that every acknowledged commit is there when it is promoted."""

    def open(self) -> LocalPostgres:
        self._made = 0
        self._old: LocalPostgres | None = None
        self.standby: LocalPostgres | None = None
        super().open()
        self.standby = self._new_standby()
        return self.server

    async def replicate(self) -> None:
        await self._set("synchronous_standby_names", "*")

    @property
    def servers(self) -> list[LocalPostgres]:
        return [self.server, self.standby] if self.standby is not None else [self.server]

    @property
    def standby_port(self) -> int:
        assert self.standby is not None
        return self.standby.port

    def promote(self) -> None:
        """The standby becomes the primary; the old one stays up and knows nothing of it."""
        assert self.standby is not None
        self.standby._must(self.standby._control("promote"))
        self._old, self.server, self.standby = self.server, self.standby, None

    async def rebuild(self) -> int:
        """The old primary is thrown away, and the new one gets a standby; the port of the old one."""
        assert self._old is not None
        port = self._old.port
        await asyncio.to_thread(self._old.remove)
        self._old = None
        self.standby = await asyncio.to_thread(self._new_standby)
        await self.replicate()
        return port

    def close(self) -> None:
        for server in (self._old, self.standby):
            if server is not None:
                server.stop("immediate")
        super().close()

    def _new_standby(self) -> LocalPostgres:
        self._made += 1
        standby = self._new_server(f"standby-{self._made}")
        standby.directory.mkdir(parents=True)
        if account := server_account():
            os.chown(standby.directory, *account)
        source = f"host=127.0.0.1 port={self.server.port} user=postgres application_name=standby"
        options = ["--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf", "--no-sync"]
        # Beside the server itself: the folder of links to it need not have all.
        copy = (standby.binaries / "pg_ctl").resolve().with_name("pg_basebackup")
        standby._must(standby._run(str(copy), f"--pgdata={standby.data}", f"--dbname={source}", *options))
        # The settings of the primary about its standbys do not apply to the standby.
        (standby.data / "postgresql.auto.conf").write_text(f"primary_conninfo = '{source}'\n")
        standby.start()
        return standby

    async def _set(self, name: str, value: str) -> None:
        connection = await asyncpg.connect(self.server.admin_dsn)
        try:
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            await connection.execute("SELECT pg_reload_conf()")
        finally:
            await connection.close()


class SmallDiskSite(Site):
    """A file system of its own, in a file, that can be filled up. Mounting it takes root."""

    settings = {"max_wal_size": "256MB", "min_wal_size": "80MB"}  # noqa: RUF012
    size = 3_000 * _MEGABYTE

    def open(self) -> LocalPostgres:
        self._image, self._mounted = self.directory / "disk", self.directory / "mounted"
        with self._image.open("wb") as image:
            image.truncate(self.size)
        self._mounted.mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self._mounted)], check=True)
        return super().open()

    def _new_server(self, name: str) -> LocalPostgres:
        self._mounted.chmod(0o755)
        return LocalPostgres(self._mounted / name, port=free_port(_PORT), settings=self.settings)

    def fill(self) -> None:
        # Not through a buffer: what does not fit any more would be tried again at the end.
        ballast = os.open(self._mounted / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # Nearly all of it at once: reserved, not written.
            free = os.statvfs(self._mounted)
            with suppress(OSError):
                os.posix_fallocate(ballast, 0, free.f_bavail * free.f_frsize - 8 * _MEGABYTE)
            for size in (_MEGABYTE, 4_096):
                with suppress(OSError):
                    while os.write(ballast, bytes(size)):
                        continue
        finally:
            os.close(ballast)

    def empty(self) -> None:
        (self._mounted / "ballast").unlink(missing_ok=True)
        # A server that found no room for its log has ended; a service manager would start it again.
        self.server.start()

    def close(self) -> None:
        try:
            self.server.stop("immediate")
        finally:
            subprocess.run(["umount", "-l", str(self._mounted)], check=False)
            shutil.rmtree(self.directory, ignore_errors=True)
