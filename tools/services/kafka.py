"""Kafka without ZooKeeper (KRaft): one broker, or three. Its jars come by Maven, once for all clones of a user."""

import shutil
import uuid
from pathlib import Path

from tools.services.ensemble import Ensemble, Node, ask
from tools.services.maven import download, jars_folder
from tools.services.service import install_packages

_PROJECT = Path(__file__).with_name("kafka.xml")
#: "Which requests do you understand?", of a client without a name. A broker answers when it may be used.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
#: Small, and compiled quickly rather than well.
_MACHINE = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Kafka(Ensemble):
    name = "kafka"
    packages = ("default-jre-headless", "maven")
    port_names = ("client", "controller")

    def installed(self) -> bool:
        return shutil.which("java") is not None and jars_folder(_PROJECT).exists()

    def missing_packages(self) -> tuple[str, ...]:
        return () if self.installed() or (shutil.which("java") and shutil.which("mvn")) else self.packages

    def install(self) -> None:
        if missing := self.missing_packages():
            install_packages(self.name, missing, self.home)
        download(_PROJECT)

    def address(self) -> str:
        return "kafka://" + ",".join(node.address for node in self.nodes)

    def settings(self, node: Node) -> dict[str, object]:
        copies = self.size
        return {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "controller.quorum.voters": ",".join(
                f"{number}@127.0.0.1:{ports['controller']}" for number, ports in enumerate(self.ports)
            ),
            "listeners": f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{node.ports['controller']}",
            "advertised.listeners": f"PLAINTEXT://{node.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": node.directory / "data",
            # A deleted topic is not created again by a request for it.
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": copies // 2 + 1,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": copies // 2 + 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": copies // 2 + 1,
            # Tests join and leave groups all the time, and may want to be missed soon.
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "group.consumer.min.session.timeout.ms": 1_000,
            "group.consumer.min.heartbeat.interval.ms": 200,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 4_000,
            # Its defaults are for a machine of its own.
            "num.network.threads": 2,
            "num.io.threads": 2,
            "background.threads": 2,
            "log.cleaner.dedupe.buffer.size": 4_194_304,
            "log.index.size.max.bytes": 1_048_576,
        }

    def command(self, node: Node) -> list[str]:
        configuration = node.directory / "server.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in self.settings(node).items()))
        self._format(node)
        return ["java", *_MACHINE, _QUIET, "-cp", f"{jars_folder(_PROJECT)}/*", "kafka.Kafka", str(configuration)]

    def serving(self, node: Node) -> bool:
        return ask(node.address, _API_VERSIONS)[4:8] == _API_VERSIONS[8:12]

    def _format(self, node: Node) -> None:
        """What Kafka's own tool writes into a new folder, without a virtual machine that is started for it."""
        file = node.directory / "data" / "meta.properties"
        if file.exists():
            return
        file.parent.mkdir(exist_ok=True)
        # The same for all nodes of one cluster, and for no other.
        cluster = uuid.uuid5(uuid.NAMESPACE_URL, f"{self.directory} {self.ports}").hex[:22]
        file.write_text(f"version=1\ncluster.id={cluster}\nnode.id={node.number}\n")


class KafkaCluster(Kafka):
    name = "kafka-cluster"
    size = 3
    on_demand = True
