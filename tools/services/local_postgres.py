"""A PostgreSQL server of our own, run from the binaries on this machine.

Needs nothing but the standard library: ``tools/services`` loads this file before anything is installed. All calls
block; from a coroutine use ``asyncio.to_thread``.

    with throwaway_postgres() as server:
        connect(server.dsn)                 # an ordinary role that may create databases
        server.restart(mode="immediate")    # as after a crash
"""

import contextlib
import hashlib
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

#: The role and the database of the DSN that is handed out. Not a superuser: nothing may need one.
ROLE = "mainspring"
#: Below the range that outgoing connections use: a client that retries while the server is down cannot take its port.
PORTS = range(20_000, 32_000)
DEFAULT_PORT = 25_432
#: Recovery after a crash can replay gigabytes.
TIMEOUT_SECONDS = 300
#: The kernel's limit on a socket's path is 107 bytes.
LONGEST_SOCKET_PATH = 100
#: Not /tmp: that is often in memory, where a durable commit costs nothing.
DISK = Path("/var/tmp")  # noqa: S108
#: Where server binaries lie when they are not on the PATH: Debian, Red Hat, Homebrew.
INSTALLATIONS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")

StopMode = Literal["smart", "fast", "immediate"]


class PostgresUnavailable(Exception):
    """There is no PostgreSQL server to be had here. The message says why."""


class LocalPostgres:
    """One PostgreSQL cluster in one directory, on a loopback port of its own, with durable settings.

    The server runs detached and outlives this process; a second object on the same directory finds it again.
    """

    def __init__(self, directory: Path, *, port: int = DEFAULT_PORT, settings: Mapping[str, str] | None = None) -> None:
        """``port`` is a wish: when it is taken, another one is found. ``settings`` come on top of the durable ones."""
        self.binaries = find_binaries()
        self.directory = reachable_directory(directory.absolute())
        # A cluster belongs to one major version: an upgrade of the binaries gets a new one.
        self.data = self.directory / f"data-{version(self.binaries)[0]}"
        self.log = self.directory / "postgres.log"
        self._wished_port = port
        self._settings = durable_settings() | dict(settings or {})

    @property
    def dsn(self) -> str:
        """Where an ordinary role that may create databases connects."""
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{ROLE}"

    @property
    def admin_dsn(self) -> str:
        """Where the superuser connects."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def port(self) -> int:
        """The port it listens on, or did when it last ran."""
        try:
            return int((self.directory / "port").read_text())
        except (FileNotFoundError, ValueError):
            return self._wished_port

    @property
    def pid(self) -> int | None:
        """The process id of the server's first process; ``None`` when it is not running."""
        if not self.data.exists() or self._control("status").returncode != 0:
            return None
        return int((self.data / "postmaster.pid").read_text().split(maxsplit=1)[0])

    @property
    def running(self) -> bool:
        return self.pid is not None

    def start(self) -> None:
        """Return when the server takes connections. Makes the cluster when there is none; no-op when running."""
        if self.running:
            return
        if not (self.data / "complete").exists():
            self._make()
        for _ in range(3):
            port = free_port(self.port)
            self._configure(port)
            started = self._control("start", "-l", str(self.log))
            if started.returncode == 0:
                return
            if is_free(port):  # otherwise another program took it between the check and the start: try the next one
                break
        raise PostgresUnavailable(f"PostgreSQL did not start: {started.stderr.strip()}\n{self._end_of_log()}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Return when the server is gone. ``immediate`` leaves it to recover from its log, as after a crash."""
        if not self.running:
            return
        stopped = self._control("stop", "-m", mode)
        if stopped.returncode != 0 and self.running:
            raise RuntimeError(f"PostgreSQL did not stop: {stopped.stderr.strip()}")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port, so that the DSN stays good."""
        port = self.port
        self.stop(mode)
        self.start()
        if self.port != port:
            raise RuntimeError(f"port {port} was taken while PostgreSQL was down")

    def remove(self) -> None:
        """Stop the server and delete the cluster."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if account := server_account():
            os.chown(self.directory, *account)
        shutil.rmtree(self.data, ignore_errors=True)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._must(self._run("initdb", f"--pgdata={self.data}", *options))
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("include = 'mainspring.conf'\n")
        self._configure(free_port(self.port))
        sql = f"CREATE ROLE {ROLE} LOGIN CREATEDB\nCREATE DATABASE {ROLE} OWNER {ROLE}\n"
        single_user = ["--single", "-D", str(self.data), "-c", "exit_on_error=true", "postgres"]
        self._must(self._run("postgres", *single_user, text=sql))
        (self.data / "complete").touch()

    def _configure(self, port: int) -> None:
        where = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": self._socket_directory,
        }
        lines = [f"{name} = '{value}'\n" for name, value in (where | self._settings).items()]
        (self.data / "mainspring.conf").write_text("".join(lines))
        (self.directory / "port").write_text(str(port))

    @property
    def _socket_directory(self) -> str:
        fits = len(os.fsencode(self.directory / ".s.PGSQL.00000")) <= LONGEST_SOCKET_PATH
        return str(self.directory) if fits else ""

    def _control(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self._run("pg_ctl", action, "-D", str(self.data), "-w", "-t", str(TIMEOUT_SECONDS), *options)

    def _run(self, program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        user, group = server_account() or (None, None)
        # Files, not pipes: the server inherits them, and a reader of a pipe would wait for the server's end.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                [self.binaries / program, *arguments],
                input=text,
                stdout=out,
                stderr=err,
                text=True,
                check=False,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal is not for the server
                user=user,
                group=group,
                extra_groups=None if user is None else [],
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(program, done.returncode, out.read(), err.read())

    def _must(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode != 0:
            raise PostgresUnavailable(f"{done.args} failed:\n{done.stdout}{done.stderr}")

    def _end_of_log(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
        except FileNotFoundError:
            return "(no log)"


@contextlib.contextmanager
def throwaway_postgres(settings: Mapping[str, str] | None = None) -> Iterator[LocalPostgres]:
    """A fresh running server, stopped and deleted at the end, even if this process is killed meanwhile."""
    parent = DISK if os.access(DISK, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="mainspring-postgres-", dir=parent))
    try:
        server = LocalPostgres(directory, port=random.choice(PORTS), settings=settings)
        with _guard(server):
            try:
                server.start()
                yield server
            finally:
                server.stop("fast")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _guard(server: LocalPostgres) -> Iterator[None]:
    """Stop and delete the server when this process is gone: a shell waits for the end of a pipe that we hold open."""
    script = 'cat > /dev/null; "$1" stop -D "$2" -m immediate -w; rm -rf "$3"'
    user, group = server_account() or (None, None)
    arguments = [server.binaries / "pg_ctl", server.data, server.directory]
    with subprocess.Popen(
        ["sh", "-c", script, "mainspring-guard", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
    ):
        yield


def find_binaries() -> Path:
    """The directory of the newest server binaries, or that of the environment variable POSTGRES_BIN."""
    if chosen := os.environ.get("POSTGRES_BIN"):
        return Path(chosen)
    on_path = [Path(found).parent for found in [shutil.which("pg_ctl")] if found]
    installed = [path for pattern in INSTALLATIONS for path in Path("/").glob(pattern.lstrip("/"))]
    complete = [path for path in on_path + installed if (path / "pg_ctl").exists() and (path / "initdb").exists()]
    if not complete:
        raise PostgresUnavailable("no PostgreSQL server binaries found on the PATH, nor where packages put them")
    return max(complete, key=version)


def version(binaries: Path) -> tuple[int, ...]:
    """As ``(15, 4)``. Before a release the second number is missing."""
    said = subprocess.run([binaries / "pg_ctl", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in re.findall(r"\d+", said)[:2])


def durable_settings() -> dict[str, str]:
    """Stock PostgreSQL with commits that last, and memory and log sizes for more than a toy."""
    quarter = physical_memory() // 4
    return {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "wal_compression": "off",
        "max_wal_size": "4GB",
        "shared_buffers": f"{min(1 << 30, quarter) >> 20}MB",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "cluster_name": "mainspring",
    }


def physical_memory() -> int:
    """In bytes; what a container may use, if that is less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def server_account() -> tuple[int, int] | None:
    """The user and group the server runs as; ``None`` for our own. It refuses to run as root."""
    if os.geteuid() != 0:
        return None
    import pwd  # there is none on Windows, where this file must still import

    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        raise PostgresUnavailable("PostgreSQL does not run as root and there is no user named postgres") from None
    return account.pw_uid, account.pw_gid


def reachable_directory(wished: Path) -> Path:
    """The wished directory, or one under /var/tmp when the server's user may not enter the wished one's parents."""
    account = server_account()
    if account is None:
        return wished
    parent = next(path for path in wished.parents if path.exists())
    enter = ["sh", "-c", 'cd "$1"', "sh", str(parent)]
    user, group = account
    entered = subprocess.run(enter, cwd="/", user=user, group=group, extra_groups=[], capture_output=True, check=False)
    if entered.returncode == 0:
        return wished
    digest = hashlib.sha256(os.fsencode(wished)).hexdigest()[:12]
    return DISK / f"mainspring-{digest}"


def free_port(wished: int) -> int:
    return wished if is_free(wished) else next(port for port in random.sample(PORTS, 1000) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: connections of a former owner that are still winding down do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
