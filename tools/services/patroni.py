"""Three PostgreSQL servers under Patroni, with one of the standbys synchronous, and an etcd that they agree by."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tools.services.postgres import local_postgres
from tools.services.service import Service, ServiceUnavailable

NODES = ("one", "two", "three")
#: Patroni's shortest: how long a leader that is silent stays the leader.
TTL_SECONDS = 20
_STARTED_WITHIN = 120
_FIRST_PORT = 27_100


class Patroni(Service):
    name = "patroni"
    packages = ("postgresql", "patroni", "python3-etcd", "etcd-server")
    #: Four servers and three daemons, for few tests: only who names it starts it.
    on_demand = True

    @property
    def _files(self) -> Path:
        return local_postgres.reachable_directory(self.directory.absolute())

    def installed(self) -> bool:
        try:
            local_postgres.find_binaries()
        except local_postgres.PostgresUnavailable:
            return False
        return all(shutil.which(program) for program in ("patroni", "etcd"))

    def running(self) -> bool:
        return all(self._pid(part) is not None for part in ("etcd", *NODES)) and self.leader() is not None

    def address(self) -> str:
        places = ",".join(f"127.0.0.1:{self._port(node, 'postgres')}" for node in NODES)
        return f"postgresql://{local_postgres.ROLE}@{places}/{local_postgres.ROLE}"

    def start(self) -> None:
        self._files.mkdir(parents=True, exist_ok=True)
        self._give_away()
        if self._pid("etcd") is None:
            self._start_etcd()
        is_new = not (self._files / NODES[0] / "data").exists()
        for node in NODES:
            self.start_node(node)
            if is_new and node == NODES[0]:
                # The others copy from it.
                self._wait(lambda: self.leader() is not None, "no leader")
        self._wait(lambda: self.leader() is not None, "no leader")
        self._make_role()
        self._wait(
            lambda: len(self.members()) == len(NODES) and self.synchronous() is not None, "no synchronous standby"
        )

    def stop(self) -> None:
        # The agents first, or they would start again what they guard.
        for part in (*NODES, "etcd"):
            self._kill(self._pid(part), signal.SIGTERM)
        for node in NODES:
            self._kill(self.postmaster(node), signal.SIGQUIT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._files, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    # What a failover is made of.

    def leader(self) -> str | None:
        """The node that Patroni calls the leader, and that runs."""
        return next((name for name, role, state in self.members() if role == "leader" and state == "running"), None)

    def synchronous(self) -> str | None:
        return next((name for name, role, _ in self.members() if role == "sync_standby"), None)

    def members(self) -> list[tuple[str, str, str]]:
        """(name, role, state) of each, as any of the agents reports."""
        for node in NODES:
            with contextlib.suppress(OSError, ValueError):
                address = f"http://127.0.0.1:{self._port(node, 'agent')}/cluster"
                with urllib.request.urlopen(address, timeout=2) as answer:
                    found = json.load(answer)["members"]
                return [(member["name"], member["role"], member.get("state", "")) for member in found]
        return []

    def kill_node(self, node: str) -> None:
        """As if its machine had lost its power: the agent and the server at once."""
        pid, postmaster = self._pid(node), self.postmaster(node)
        for one in (pid, postmaster):
            if one is not None:
                os.kill(one, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        if self._pid(node) is not None:
            return
        files = self._files / node
        files.mkdir(parents=True, exist_ok=True)
        ports = {kind: self._choose_port(node, kind) for kind in ("postgres", "agent")}
        (files / "patroni.yml").write_text(self._configuration(node, ports))
        self._give_away()
        self._spawn(node, ["patroni", str(files / "patroni.yml")])

    def postmaster(self, node: str) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((self._files / node / "data" / "postmaster.pid").read_text().split()[0])
            if Path(f"/proc/{pid}").exists():
                return pid
        return None

    # How they are started.

    def _start_etcd(self) -> None:
        client, peer = self._choose_port("etcd", "client"), self._choose_port("etcd", "peer")
        here = f"http://127.0.0.1:{client}"
        self._spawn(
            "etcd",
            [
                *("etcd", "--name", "etcd", "--data-dir", str(self._files / "etcd-data"), "--log-level", "error"),
                *("--listen-client-urls", here, "--advertise-client-urls", here),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-cluster", f"etcd=http://127.0.0.1:{peer}"),
            ],
        )
        self._wait(lambda: not local_postgres.is_free(client), "etcd did not start")

    def _configuration(self, node: str, ports: dict[str, int]) -> str:
        """YAML, of which JSON is a part."""
        files = self._files / node
        binaries = (local_postgres.find_binaries() / "pg_ctl").resolve().parent
        etcd = self._port("etcd", "client")
        trust = {"username": "postgres"}
        settings = {
            "shared_buffers": "32MB",
            "max_wal_size": "256MB",
            "max_connections": 100,
            "wal_log_hints": "on",
            "timezone": "UTC",
        }
        return json.dumps(
            {
                "scope": "mainspring",
                "name": node,
                "restapi": {"listen": f"127.0.0.1:{ports['agent']}", "connect_address": f"127.0.0.1:{ports['agent']}"},
                "etcd3": {"host": f"127.0.0.1:{etcd}"},
                "bootstrap": {
                    "dcs": {
                        "ttl": TTL_SECONDS,
                        "loop_wait": 2,
                        "retry_timeout": 5,
                        "primary_start_timeout": 0,
                        "synchronous_mode": True,
                        "postgresql": {"use_pg_rewind": True, "parameters": settings},
                    },
                    "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}],
                    "pg_hba": [
                        "local all all trust",
                        "host all all 127.0.0.1/32 trust",
                        "host replication all 127.0.0.1/32 trust",
                    ],
                },
                "postgresql": {
                    "listen": f"127.0.0.1:{ports['postgres']}",
                    "connect_address": f"127.0.0.1:{ports['postgres']}",
                    "data_dir": str(files / "data"),
                    "bin_dir": str(binaries),
                    "pgpass": str(files / "pgpass"),
                    "authentication": {"superuser": trust, "replication": trust, "rewind": trust},
                    "parameters": {"unix_socket_directories": ""},
                },
            },
            indent=1,
        )

    def _make_role(self) -> None:
        leader = self.leader()
        assert leader is not None
        psql = (local_postgres.find_binaries() / "pg_ctl").resolve().parent / "psql"
        dsn = f"postgresql://postgres@127.0.0.1:{self._port(leader, 'postgres')}/postgres"
        role = local_postgres.ROLE
        for statement in (f"CREATE ROLE {role} LOGIN CREATEDB", f"CREATE DATABASE {role} OWNER {role}"):
            done = subprocess.run([psql, dsn, "-qc", statement], capture_output=True, text=True, check=False)
            if done.returncode != 0 and "already exists" not in done.stderr:
                raise ServiceUnavailable(f"patroni: {done.stderr}")

    def _spawn(self, part: str, command: Sequence[str]) -> None:
        user, group = local_postgres.server_account() or (None, None)
        with (self._files / f"{part}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                # Debian's commands look for what was installed for the system's Python.
                env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            )
        (self._files / f"{part}.pid").write_text(str(process.pid))

    def _pid(self, part: str) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._files / f"{part}.pid").read_text())
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if status != "Z" and str(self._files) in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
        return None

    def _kill(self, pid: int | None, with_signal: int) -> None:
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, with_signal)
            until = time.monotonic() + 15
            while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                time.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _port(self, part: str, kind: str) -> int:
        return int((self._files / f"{part}.{kind}.port").read_text())

    def _choose_port(self, part: str, kind: str) -> int:
        """One for good: a server that is started again must be found where it was."""
        file = self._files / f"{part}.{kind}.port"
        if not file.exists():
            taken = len(list(self._files.glob("*.port")))
            file.write_text(str(local_postgres.free_port(_FIRST_PORT + taken)))
        return int(file.read_text())

    def _give_away(self) -> None:
        if account := local_postgres.server_account():
            for path in [self._files, *(self._files / node for node in NODES)]:
                with contextlib.suppress(FileNotFoundError):
                    os.chown(path, *account)

    def _wait(self, until: "object", otherwise: str) -> None:
        assert callable(until)
        end = time.monotonic() + _STARTED_WITHIN
        while not until():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._files.glob("*.log"))
                raise ServiceUnavailable(f"patroni: {otherwise} after {_STARTED_WITHIN} s\n{logs}")
            time.sleep(0.2)
