"""Redis: one server."""

import shutil

from tools.services.ensemble import Ensemble, Node, ask


class Redis(Ensemble):
    name = "redis"
    packages = ("redis-server",)

    def installed(self) -> bool:
        return shutil.which("redis-server") is not None

    def address(self) -> str:
        return f"redis://{self.nodes[0].address}/0"

    def command(self, node: Node) -> list[str]:
        configuration = node.directory / "redis.conf"
        settings = {
            "port": node.ports["client"],
            "bind": "127.0.0.1",
            "dir": node.directory,
            "appendonly": "yes",
            "save": '""',
            "maxmemory-policy": "noeviction",
        }
        configuration.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        # Its folder is in its title while it runs.
        return ["redis-server", str(configuration), "--proc-title-template", "{title} " + str(node.directory)]

    def serving(self, node: Node) -> bool:
        return ask(node.address, b"PING\r\n").startswith(b"+PONG")
