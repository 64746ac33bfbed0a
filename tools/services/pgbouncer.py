"""pgbouncer in transaction mode, in front of the tests' PostgreSQL."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tools.services.postgres import Postgres, local_postgres
from tools.services.service import Service, ServiceUnavailable

_WISHED_PORT = 26_432
_STARTED_WITHIN = 120
#: A connection of its own for each of those that are at work at once: few, so that they are really shared.
_POOL = 5


class Pgbouncer(Service):
    name = "pgbouncer"
    packages = ("pgbouncer",)

    @property
    def _postgres(self) -> Postgres:
        return Postgres(self.home)

    @property
    def _files(self) -> Path:
        """Where its user may read: as PostgreSQL's."""
        return local_postgres.reachable_directory(self.directory.absolute())

    @property
    def _pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._files / "pid").read_text())
            if str(self._files) in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
        return None

    def installed(self) -> bool:
        return _program() is not None and self._postgres.installed()

    def running(self) -> bool:
        return self._pid is not None and self._postgres.running()

    def address(self) -> str:
        port = (self._files / "port").read_text().strip()
        return self._postgres.address().rpartition("@")[0] + f"@127.0.0.1:{port}/{local_postgres.ROLE}"

    def start(self) -> None:
        self.stop()
        self._postgres.ensure()
        files = self._files
        files.mkdir(parents=True, exist_ok=True)
        port = local_postgres.free_port(_WISHED_PORT)
        (files / "port").write_text(str(port))
        server = self._postgres.address().rpartition(":")[2].partition("/")[0]
        (files / "users.txt").write_text(f'"{local_postgres.ROLE}" ""\n"postgres" ""\n')
        (files / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {files}/users.txt\nlogfile = {files}/log\npidfile = {files}/pid\n"
            f"pool_mode = transaction\ndefault_pool_size = {_POOL}\nmax_client_conn = 1000\nserver_idle_timeout = 5\n"
        )
        account = local_postgres.server_account()
        user, group = account or (None, None)
        if account is not None:
            for path in (files, *files.iterdir()):
                os.chown(path, *account)
        program = _program()
        assert program is not None
        done = subprocess.run(
            [program, "-d", str(files / "pgbouncer.ini")],
            cwd="/",
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
        until = time.monotonic() + _STARTED_WITHIN
        while local_postgres.is_free(port):
            if done.returncode != 0 or time.monotonic() > until:
                with contextlib.suppress(OSError):
                    raise ServiceUnavailable(f"pgbouncer did not start:\n{(files / 'log').read_text()[-2000:]}")
                raise ServiceUnavailable("pgbouncer did not start")
            time.sleep(0.05)

    def stop(self) -> None:
        pid = self._pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.02)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._files, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def _program() -> str | None:
    return shutil.which("pgbouncer") or next((p for p in ("/usr/sbin/pgbouncer",) if Path(p).exists()), None)
