"""The life of every local server: found or installed, started once, found again, stopped."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar


class ServiceUnavailable(Exception):
    """The server cannot be had on this machine. The message says why and what would help."""


class Service(ABC):
    """One server on loopback, with its files in ``.services/<name>/``. It runs detached until it is stopped."""

    name: ClassVar[str]
    #: The packages of Debian that bring it.
    packages: ClassVar[tuple[str, ...]]
    #: Not started with the others: only who names it starts it.
    on_demand: ClassVar[bool] = False

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / self.name

    @abstractmethod
    def installed(self) -> bool:
        """Whether it can be started now."""

    def missing_packages(self) -> tuple[str, ...]:
        return () if self.installed() else self.packages

    @abstractmethod
    def running(self) -> bool:
        """Whether the server that we started is alive; never true for another program. Called when installed."""

    @abstractmethod
    def address(self) -> str:
        """Where clients connect, once it runs."""

    @abstractmethod
    def start(self) -> None:
        """Return when the server is ready. Called when installed and not running."""

    @abstractmethod
    def stop(self) -> None:
        """Return when the server that we started is gone. Called when installed."""

    @abstractmethod
    def remove(self) -> None:
        """Stop, and delete all data."""

    def ensure(self) -> str:
        """Install and start it if need be; return its address, which is also left in the file ``dsn``."""
        with self.locked():
            if not self.installed():
                self.install()
            if not self.running():
                self.start()
            (self.directory / "dsn").write_text(self.address() + "\n")
            return self.address()

    def install(self) -> None:
        """Called when it is not installed."""
        install_packages(self.name, self.packages, self.home)
        if not self.installed():
            raise ServiceUnavailable(f"{self.name} is still not found after installing {' '.join(self.packages)}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time starts, stops or removes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with _alone(self.home / f"{self.name}.lock"):
            yield


def cache() -> Path:
    """The folder for downloads and builds that all clones of a user share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainspring"


def install_packages(whose: str, packages: Iterable[str], home: Path) -> None:
    """By Debian's tools, as root. One at a time: they allow no other beside them."""
    command = f"apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ServiceUnavailable(f"{whose} is not installed. On Debian: {command}")
    print(f"{whose}: {command}", file=sys.stderr, flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    with _alone(home / "packages.lock"):
        for step in (["apt-get", "update"], install):
            # To a file, not a pipe: a package may start a daemon, and a pipe would end only with that.
            with tempfile.TemporaryFile("w+") as output:
                done = subprocess.run(
                    step, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
                )
                output.seek(0)
                said = output.read()[-2000:]
            if done.returncode != 0:
                raise ServiceUnavailable(f"{whose} cannot be installed: {' '.join(step)}\n{said}")


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
