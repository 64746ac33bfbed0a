"""What the runner needs to know of a peer. Each folder has an ``adapter.py`` with one instance, ``PEER``."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec

from bench.peers import installing


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """Commands of an installed peer, without their arguments."""

    worker: Sequence[str]
    submitter: Sequence[str]
    version: str
    environment: Mapping[str, str] = {}
    #: A process beside the workers, if there is one.
    scheduler: Sequence[str] = ()


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: Raises ``ServiceUnavailable`` if its tools are missing.
    install: Callable[[], Programs]
    #: Counts the jobs that have not ended.
    unfinished: str
    server: Literal["postgres", "redis"] = "postgres"
    #: Worker processes in the full cycle and in the drain: what is fastest on two cores.
    workers: int = 1
    drain_workers: int = 2
    #: Slow peers have this share of jobs in their queues, so that a round does not take minutes.
    drain_share: float = 1
    #: The variable with the address of the server, beside ``PEER_URL``.
    url_variable: str = "PEER_URL"


def install_python(name: str, package: str, worker: Sequence[str] = ()) -> Programs:
    """A peer in Python: ``-m bench.peers.NAME.worker`` in the environment of the peers."""
    python = str(installing.install_python())
    return Programs(
        worker=[python, "-m", *(worker or [f"bench.peers.{name}.worker"])],
        submitter=[python, "-m", f"bench.peers.{name}.submitter"],
        version=_pinned(package),
    )


def install_node(name: str, package: str) -> Programs:
    """A peer in JavaScript: ``worker.js`` and ``submitter.js`` of its folder."""
    node, modules = installing.install_node()
    folder = installing.HERE / name
    packages = msgspec.json.decode((installing.HERE / "package.json").read_bytes())["dependencies"]
    return Programs(
        worker=[str(node), str(folder / "worker.js")],
        submitter=[str(node), str(folder / "submitter.js")],
        version=packages[package],
        environment={"NODE_PATH": str(modules), "NODE_ENV": "production", "NO_LOG_SUCCESS": "1"},
    )


def install_river() -> Programs:
    program = str(installing.install_go())
    lines = (installing.HERE / "river/go.mod").read_text().splitlines()
    [pinned] = [line.split()[1] for line in lines if line.strip().startswith("github.com/riverqueue/river v")]
    return Programs(worker=[program, "worker"], submitter=[program, "submit"], version=pinned.removeprefix("v"))


def install_mainspring() -> Programs:
    module = "bench.peers.mainspring"
    here = [sys.executable, "-m"]
    return Programs(
        worker=[*here, "mainspring", "worker", f"{module}.tasks:app", "--queue", "bench:1000"],
        scheduler=[*here, "mainspring", "scheduler"],
        submitter=[*here, f"{module}.submitter"],
        version=version("mainspring"),
        environment={"MAINSPRING_LOG_LEVEL": "warning"},
    )


def _pinned(package: str) -> str:
    for line in Path(installing.REQUIREMENTS).read_text().splitlines():
        name, _, pinned = line.partition("==")
        if name == package:
            return pinned.split()[0]
    raise LookupError(package)
