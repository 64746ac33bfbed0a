"""Redis: one server; two of them with three Sentinels that name the master; a cluster of three."""

import shutil
import time
from collections.abc import Callable

from tools.services.ensemble import Ensemble, Node, ask
from tools.services.service import ServiceUnavailable

_SLOTS = 16_384
_SECONDS_TO_AGREE = 120


class Redis(Ensemble):
    name = "redis"
    packages = ("redis-server",)

    def installed(self) -> bool:
        return shutil.which("redis-server") is not None

    def address(self) -> str:
        return f"redis://{self.nodes[0].address}/0"

    def settings(self, node: Node) -> dict[str, object]:
        return {
            "port": node.ports["client"],
            "bind": "127.0.0.1",
            "dir": node.directory,
            "appendonly": "yes",
            "save": '""',
            "maxmemory-policy": "noeviction",
        }

    def command(self, node: Node) -> list[str]:
        configuration = node.directory / "redis.conf"
        if not configuration.exists():
            # Once: Sentinels write there, too.
            configuration.write_text("".join(f"{name} {value}\n" for name, value in self.settings(node).items()))
        # Its folder is in its title while it runs.
        return ["redis-server", str(configuration), "--proc-title-template", "{title} " + str(node.directory)]

    def serving(self, node: Node) -> bool:
        return ask(node.address, b"PING\r\n").startswith(b"+PONG")


class RedisSentinel(Redis):
    """A master, a replica, and three Sentinels: the first two nodes hold data."""

    name = "redis-sentinel"
    on_demand = True
    size = 5
    master = "tests"

    def address(self) -> str:
        return f"redis+sentinel://{','.join(node.address for node in self.nodes[2:])}/{self.master}/0"

    def settings(self, node: Node) -> dict[str, object]:
        master = f"127.0.0.1 {self.nodes[0].ports['client']}"
        if node.number < 2:
            return super().settings(node) | ({"replicaof": master} if node.number == 1 else {})
        return {
            "port": node.ports["client"],
            "bind": "127.0.0.1",
            "dir": node.directory,
            "sentinel monitor": f"{self.master} {master} 2",
            "sentinel down-after-milliseconds": f"{self.master} 1000",
            "sentinel failover-timeout": f"{self.master} 5000",
        }

    def command(self, node: Node) -> list[str]:
        command = super().command(node)
        return command if node.number < 2 else [*command[:2], "--sentinel", *command[2:]]

    def start(self) -> None:
        super().start()
        _wait_until(self.name, lambda: all(self._knows_all(node) for node in self.nodes[2:]))

    def _knows_all(self, sentinel: Node) -> bool:
        """The replica, and the other two."""
        said = ask(sentinel.address, b"INFO sentinel\r\n")
        return b"slaves=1,sentinels=3" in said and b"status=ok" in said


class RedisCluster(Redis):
    """Three masters without replicas: who kills one takes a third of the keys away."""

    name = "redis-cluster"
    on_demand = True
    size = 3
    port_names = ("client", "bus")

    def address(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def settings(self, node: Node) -> dict[str, object]:
        return super().settings(node) | {
            "cluster-enabled": "yes",
            "cluster-port": node.ports["bus"],
            "cluster-node-timeout": 2000,
            # The remaining nodes serve what they have.
            "cluster-require-full-coverage": "no",
        }

    def start(self) -> None:
        super().start()
        if not all(self._says(node, b"cluster_known_nodes:3") for node in self.nodes):
            self._join()
        _wait_until(self.name, lambda: all(self._says(node, b"cluster_state:ok") for node in self.nodes))

    def _join(self) -> None:
        each = -(-_SLOTS // self.size)
        first = self.nodes[0]
        for node in self.nodes:
            slots = f"{node.number * each} {min((node.number + 1) * each, _SLOTS) - 1}"
            ask(node.address, f"CLUSTER ADDSLOTSRANGE {slots}\r\n".encode())
            ask(node.address, f"CLUSTER MEET 127.0.0.1 {first.ports['client']} {first.ports['bus']}\r\n".encode())
        _wait_until(self.name, lambda: all(self._says(node, b"cluster_slots_ok:16384") for node in self.nodes))

    def _says(self, node: Node, word: bytes) -> bool:
        return word in ask(node.address, b"CLUSTER INFO\r\n")


def _wait_until(name: str, agreed: Callable[[], bool]) -> None:
    until = time.monotonic() + _SECONDS_TO_AGREE
    while not agreed():
        if time.monotonic() > until:
            raise ServiceUnavailable(f"{name}: its nodes did not agree in {_SECONDS_TO_AGREE} s")
        time.sleep(0.05)
