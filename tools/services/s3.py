"""An S3 server: versitygw on a folder, built of Go's modules, once for all clones of a user."""

from pathlib import Path

from tools.services.ensemble import Ensemble, Node, ask
from tools.services.go_module import build
from tools.services.service import cache

_VERSION = "v1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"
#: For a server on loopback alone, with nothing in it but what tests put there.
ACCESS_KEY = "mainspring"
SECRET_KEY = "mainspring-tests"  # noqa: S105
REGION = "us-east-1"


class S3(Ensemble):
    """The address is its endpoint. A bucket is a folder below ``buckets``: a test creates its own there."""

    name = "s3"
    packages = ()

    @property
    def program(self) -> Path:
        return cache() / f"versitygw-{_VERSION}"

    def installed(self) -> bool:
        return self.program.exists()

    def install(self) -> None:
        build(self.name, self.program, ["go", "install", "-trimpath", f"{_MODULE}@{_VERSION}"])

    def address(self) -> str:
        return f"http://{self.nodes[0].address}"

    def bucket(self, name: str) -> Path:
        """Made if need be."""
        folder = self.nodes[0].directory / "buckets" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def command(self, node: Node) -> list[str]:
        buckets, about = node.directory / "buckets", node.directory / "about"
        for folder in (buckets, about):
            folder.mkdir(exist_ok=True)
        # What belongs to an object lies beside it: not every file system has room for that in the file's attributes.
        options = ["--port", node.address, "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
        return [
            str(self.program),
            *options,
            "--quiet",
            "--health",
            "/health",
            "posix",
            "--sidecar",
            str(about),
            str(buckets),
        ]

    def serving(self, node: Node) -> bool:
        return b" 200 " in ask(node.address, b"GET /health HTTP/1.0\r\n\r\n")
