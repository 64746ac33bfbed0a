"""ZooKeeper: three nodes, with sessions from half a second to an hour."""

import shutil
from pathlib import Path

from tools.services.ensemble import Ensemble, Node, ask

_JAR = Path("/usr/share/java/zookeeper.jar")


class ZooKeeper(Ensemble):
    name = "zookeeper"
    packages = ("zookeeper", "default-jre-headless")
    size = 3
    port_names: tuple[str, ...] = ("client", "quorum", "election")
    #: Milliseconds. A session lasts two ticks at least; its end is rounded up to the next tick.
    tick = 250

    def installed(self) -> bool:
        return _JAR.exists() and shutil.which("java") is not None

    def address(self) -> str:
        return "zookeeper://" + ",".join(node.address for node in self.nodes)

    def command(self, node: Node) -> list[str]:
        data = node.directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{node.number + 1}\n")
        settings = {
            "tickTime": self.tick,
            # Twenty ticks by default: a session of a busy machine would end.
            "maxSessionTimeout": 3_600_000,
            "initLimit": 40,
            "syncLimit": max(4, 2_000 // self.tick),
            "dataDir": data,
            "clientPort": node.ports["client"],
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "maxClientCnxns": 0,
            "autopurge.purgeInterval": 1,
            **{
                f"server.{number + 1}": f"127.0.0.1:{ports['quorum']}:{ports['election']}"
                for number, ports in enumerate(self.ports)
            },
        }
        configuration = node.directory / "zoo.cfg"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        logging = "log4j.rootLogger=WARN, CONSOLE\nlog4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender\n"
        logging += "log4j.appender.CONSOLE.layout=org.apache.log4j.SimpleLayout\n"
        (node.directory / "log4j.properties").write_text(logging)
        # Small and quick to start: it holds next to nothing.
        machine = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true"]
        where = f"{node.directory}:{_JAR}"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", *machine, "-cp", where, main, str(configuration)]

    def serving(self, node: Node) -> bool:
        return b"Mode: " in ask(node.address, b"srvr")


class StockZooKeeper(ZooKeeper):
    """With the ticks that its example configuration has."""

    name = "zookeeper-stock"
    tick = 2_000
