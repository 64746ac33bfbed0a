"""RabbitMQ: one node, or a cluster of three. Each has its own cookie and port mapper, so that no two ever meet."""

import secrets
import shutil
import signal
from functools import cached_property
from pathlib import Path

from tools.services.ensemble import Ensemble, Node, ask

#: Not the one on the PATH: Debian's refuses every account but root and its own.
_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
#: A client that says this is answered by a frame.
_HEADER = b"AMQP\x00\x00\x09\x01"
#: No threads that look for work in a loop while there is none: there are many servers on one computer.
_MACHINE = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
#: Writes go to the page cache, not to the disk.
_ADVANCED = "[{ra, [{wal_sync_method, none}]}].\n"


class RabbitMQ(Ensemble):
    name = "rabbitmq"
    packages = ("rabbitmq-server",)
    #: One mapper of names to ports is enough for all: the first node's.
    port_names = ("client", "distribution", "epmd")

    @cached_property
    def _mapper(self) -> "_PortMapper":
        return _PortMapper(self)

    def installed(self) -> bool:
        return _SERVER.exists()

    def address(self) -> str:
        # A user who may come over loopback only.
        return "amqp://guest:guest@" + ",".join(node.address for node in self.nodes) + "/"

    def command(self, node: Node) -> list[str]:
        self._mapper.start()
        names = [f"rabbit{number}@localhost" for number in range(self.size)]
        settings = {
            "listeners.tcp.1": node.address,
            "log.console.level": "warning",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "50MB",
            # A frozen node is taken for dead after this many seconds, give or take a quarter.
            "net_ticktime": 8,
            "cluster_partition_handling": "pause_minority" if self.size > 1 else "ignore",
            "cluster_formation.peer_discovery_backend": "classic_config",
            **{f"cluster_formation.classic_config.nodes.{number}": name for number, name in enumerate(names, 1)},
        }
        configuration = node.directory / "rabbitmq.conf"
        configuration.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (node.directory / "advanced.config").write_text(_ADVANCED)
        (node.directory / "enabled_plugins").write_text("[].\n")
        self._give_cookie(node)
        environment = {
            # Where its cookie is.
            "HOME": node.directory,
            "ERL_EPMD_PORT": self.ports[0]["epmd"],
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": names[node.number],
            "RABBITMQ_DIST_PORT": node.ports["distribution"],
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": configuration,
            "RABBITMQ_ADVANCED_CONFIG_FILE": node.directory / "advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": node.directory / "enabled_plugins",
            "RABBITMQ_MNESIA_BASE": node.directory / "data",
            "RABBITMQ_LOG_BASE": node.directory,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _MACHINE,
            # The script becomes the server, instead of a parent that would outlive it or die without it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        # Erlang keeps a flag that it does not know: so the folder is in the command line from the first moment on.
        tag = ["-mainspring", str(node.directory)]
        return ["env", *(f"{name}={value}" for name, value in environment.items()), str(_SERVER), *tag]

    def serving(self, node: Node) -> bool:
        return ask(node.address, _HEADER).startswith(b"\x01")

    def start(self) -> None:
        if all(node.pid is None for node in self.nodes):
            # It would look like another program on our port.
            self._mapper.signal(signal.SIGKILL)
        if self.size > 1 and not (self.directory / "joined").exists():
            self._join()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._mapper.signal(signal.SIGKILL)

    def remove(self) -> None:
        self._mapper.signal(signal.SIGKILL)
        super().remove()

    def _join(self) -> None:
        """The others join the first: nodes that start at the same time may each found a cluster of their own."""
        self.nodes[0].start()
        self.wait(self.nodes[:1])
        for node in self.nodes[1:]:
            node.start()
        self.wait()
        (self.directory / "joined").touch()

    def _give_cookie(self, node: Node) -> None:
        kept, own = self.directory / "cookie", node.directory / ".erlang.cookie"
        if not kept.exists():
            kept.write_text(secrets.token_hex(16))
        if not own.exists():
            shutil.copy(kept, own)
            own.chmod(0o400)


class RabbitMQCluster(RabbitMQ):
    name = "rabbitmq-cluster"
    size = 3
    on_demand = True


class _PortMapper(Node):
    """Erlang's daemon that knows the ports of the nodes. A node would start one by itself that is never stopped."""

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        super().__init__(rabbitmq, number=0)
        self.directory = rabbitmq.directory / "epmd"

    def command(self) -> list[str]:
        program = self.directory / "epmd"
        program.unlink(missing_ok=True)
        # By a name in its folder, so that it can be distinguished from other processes.
        program.symlink_to(shutil.which("epmd") or "/usr/bin/epmd")
        return [str(program), "-port", str(self.ports["epmd"]), "-address", "127.0.0.1"]
