"""etcd: three nodes, with timeouts that let a lease be as short as a second."""

import shutil

from tools.services.ensemble import Ensemble, Node, ask


class Etcd(Ensemble):
    name = "etcd"
    packages = ("etcd-server",)
    size = 3
    port_names = ("client", "peer")
    #: Milliseconds. A lease is never granted for less than one and a half election timeouts, in whole seconds.
    heartbeat, election = 50, 500

    def installed(self) -> bool:
        return shutil.which("etcd") is not None

    def address(self) -> str:
        return "etcd://" + ",".join(node.address for node in self.nodes)

    def command(self, node: Node) -> list[str]:
        def peer(number: int) -> str:
            return f"http://127.0.0.1:{self.ports[number]['peer']}"

        return [
            "etcd",
            f"--name=node{node.number}",
            f"--data-dir={node.directory}/data",
            f"--listen-client-urls=http://{node.address}",
            f"--advertise-client-urls=http://{node.address}",
            f"--listen-peer-urls={peer(node.number)}",
            f"--initial-advertise-peer-urls={peer(node.number)}",
            "--initial-cluster=" + ",".join(f"node{number}={peer(number)}" for number in range(self.size)),
            f"--initial-cluster-token={self.directory}",
            f"--heartbeat-interval={self.heartbeat}",
            f"--election-timeout={self.election}",
            "--auto-compaction-retention=5m",
            "--logger=zap",
            "--log-level=warn",
        ]

    def serving(self, node: Node) -> bool:
        said = ask(node.address, b"GET /health HTTP/1.0\r\n\r\n")
        return b'"health":"true"' in said


class StockEtcd(Etcd):
    """With its default timeouts."""

    name = "etcd-stock"
    heartbeat, election = 100, 1000
