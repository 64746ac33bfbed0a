"""HashiCorp Vault: its server of Go's modules, with a small program around it that keeps all in memory."""

import hashlib
from pathlib import Path

from tools.services.ensemble import Ensemble, Node, ask
from tools.services.go_module import build
from tools.services.service import cache

_SOURCE = Path(__file__).parent / "vault_server"


class Vault(Ensemble):
    """The root token is in the file ``token`` of its folder."""

    name = "vault"
    packages = ()
    #: A quarter of an hour of processor time, once.
    on_demand = True

    @property
    def program(self) -> Path:
        sources = b"".join((_SOURCE / name).read_bytes() for name in ("main.go", "go.mod"))
        return cache() / f"vault-{hashlib.sha256(sources).hexdigest()[:12]}"

    @property
    def token(self) -> str:
        return (self.nodes[0].directory / "token").read_text()

    def installed(self) -> bool:
        return self.program.exists()

    def install(self) -> None:
        build(self.name, self.program, ["go", "install", "-trimpath", "."], _SOURCE)

    def address(self) -> str:
        return f"http://{self.nodes[0].address}"

    def command(self, node: Node) -> list[str]:
        return [str(self.program), node.address, str(node.directory / "token")]

    def serving(self, node: Node) -> bool:
        return b" 200 " in ask(node.address, b"GET /v1/sys/health HTTP/1.0\r\n\r\n")
