"""Servers that are one or several processes of ours, each with its ports and its folder."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tools.services.postgres import local_postgres
from tools.services.service import Service, ServiceUnavailable

#: A virtual machine of Java on a busy computer takes its time.
_SECONDS_TO_START = 300
_SECONDS_TO_STOP = 10
#: The kernel's mark of a thread of its own.
_PF_KTHREAD = 0x200000


class Node:
    """One process of a server: where it listens, how it is started, and what a test may do to it."""

    def __init__(self, ensemble: "Ensemble", number: int) -> None:
        self.number = number
        self.directory = ensemble.directory / str(number)
        self._ensemble = ensemble

    @property
    def ports(self) -> Mapping[str, int]:
        return self._ensemble.ports[self.number]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['client']}"

    @property
    def pid(self) -> int | None:
        """The process that we started, while it lives: a reused process id does not count."""
        try:
            pid = int((self.directory / "pid").read_text())
            process = Path(f"/proc/{pid}")
            command = (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()
            threads = len(list((process / "task").iterdir()))
        except (OSError, ValueError, IndexError):
            return None
        if state[0] in "ZX":
            # Its first thread has ended. While it has others, its ports are still taken.
            return pid if threads > 1 else None
        # A process has no command line while it becomes another program, and when it is ending but still has its ports.
        between = not command and not int(state[6]) & _PF_KTHREAD
        return pid if between or str(self.directory).encode() in command else None

    def command(self) -> list[str]:
        return self._ensemble.command(self)

    def start(self) -> None:
        """Begin to start; no-op when it runs. ``Ensemble.wait`` says when it is ready."""
        if self.pid is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C in a terminal is not for the server
            )
        (self.directory / "pid").write_text(str(process.pid))
        # The caller need not wait for its end.
        process.returncode = 0

    def signal(self, number: int) -> None:
        """As a test does: ``SIGKILL``, ``SIGSTOP``, ``SIGCONT``. No-op when it does not run."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if number == signal.SIGKILL and not self.wait_for_end(_SECONDS_TO_START):
                raise ServiceUnavailable(f"{self._ensemble.name}: process {pid} was killed and does not end")

    def wait_for_end(self, seconds: float = _SECONDS_TO_STOP) -> bool:
        until = time.monotonic() + seconds
        while (pid := self.pid) is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True


class Ensemble(Service):
    """So many nodes on loopback. An object on another folder is another ensemble, which a test may break."""

    #: How many nodes, and the names of the ports that each of them needs; clients use the one called ``client``.
    size = 1
    port_names: tuple[str, ...] = ("client",)

    @cached_property
    def nodes(self) -> list[Node]:
        return [Node(self, number) for number in range(self.size)]

    @property
    def ports(self) -> list[dict[str, int]]:
        """Of each node; chosen once and kept, so that the address stays good."""
        file = self.directory / "ports.json"
        with contextlib.suppress(FileNotFoundError, ValueError):
            kept: list[dict[str, int]] = json.loads(file.read_text())
            return kept
        free = [port for port in random.sample(local_postgres.PORTS, 400) if local_postgres.is_free(port)]
        chosen = [{name: free.pop() for name in self.port_names} for _ in range(self.size)]
        self.directory.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(chosen))
        return chosen

    @abstractmethod
    def command(self, node: Node) -> list[str]:
        """How a node is started; its folder is there, and must stand in the command."""

    @abstractmethod
    def serving(self, node: Node) -> bool:
        """Whether a node that runs answers clients."""

    def running(self) -> bool:
        # A node that is still starting is waited for.
        return all(node.pid is not None and self.serving(node) for node in self.nodes)

    def start(self) -> None:
        taken = any(not local_postgres.is_free(port) for ports in self.ports for port in ports.values())
        if taken and all(node.pid is None for node in self.nodes):
            # Another program listens there now, and the data of a node names its ports: start from nothing.
            self.remove()
        for node in self.nodes:
            node.start()
        self.wait()

    def wait(self, nodes: Sequence[Node] | None = None) -> None:
        """Return when these nodes serve; all of them by default."""
        until = time.monotonic() + _SECONDS_TO_START
        for node in nodes or self.nodes:
            absent = 0
            while not self.serving(node):
                # The process has no recognizable title for a moment, while Redis writes it.
                absent = absent + 1 if node.pid is None else 0
                if absent > 2 or time.monotonic() > until:
                    said = (node.directory / "log").read_text(errors="replace")[-2000:]
                    raise ServiceUnavailable(f"{self.name} did not start:\n{said}")
                time.sleep(0.05)

    def stop(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        for node in self.nodes:
            if not node.wait_for_end():
                node.signal(signal.SIGKILL)

    def remove(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)


def ask(address: str, said: bytes, timeout: float = 1) -> bytes:
    """What a server answers to a line; nothing when it does not."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=timeout) as connection:
            connection.sendall(said)
            return connection.recv(4096)
    except OSError:
        return b""
