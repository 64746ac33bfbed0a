"""Coordinators and brokers that the cluster can be run on, each with servers of its own that may be broken."""

import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from tools.services import all_services

#: The brokers. All others are coordinators.
BROKERS = ("redis", "rabbitmq", "kafka")
#: What each kind of node is asked, and what only the leader answers.
_LEADER = {
    "etcd": (b"GET /metrics HTTP/1.0\r\n\r\n", b"\netcd_server_is_leader 1"),
    "zookeeper": (b"srvr", b"Mode: leader"),
}


class Node(Protocol):
    """One process of an ensemble."""

    @property
    def ports(self) -> Mapping[str, int]: ...

    def start(self) -> None: ...

    def signal(self, number: int) -> None: ...


class Ensemble(Protocol):
    """Some nodes on loopback, as ``tools.services`` makes them."""

    name: str

    @property
    def nodes(self) -> Sequence[Node]: ...

    def ensure(self) -> str: ...

    def address(self) -> str: ...

    def remove(self) -> None: ...


class NoSuchEnsemble(Exception):
    """There is no service of this name, or it cannot be broken node by node."""


def make_ensemble(name: str, home: Path) -> Ensemble | None:
    """A fresh ensemble in a folder of its own; None for the store, which needs nothing."""
    if name == "store":
        return None
    service: Any = all_services().get(name)
    if not hasattr(service, "nodes"):
        raise NoSuchEnsemble(f"{name} is no ensemble of tools.services")
    return cast(Ensemble, type(service)(home))


def leader_of(ensemble: Ensemble) -> Node | None:
    question, answer = _LEADER[ensemble.name]
    return next((node for node in ensemble.nodes if answer in _ask(node.ports["client"], question)), None)


def freeze(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.signal(signal.SIGSTOP)


def thaw(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.signal(signal.SIGCONT)


def _ask(port: int, question: bytes) -> bytes:
    said = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(question)
        while part := connection.recv(65_536):
            said += part
    return said
