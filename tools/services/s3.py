"""An S3 server: versitygw on a folder, built of Go's modules, once for all clones of a user."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.services.ensemble import Ensemble, Node, ask
from tools.services.service import ServiceUnavailable

_VERSION = "v1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"
_BUILT_WITHIN_SECONDS = 1_800
#: For a server on loopback alone, with nothing in it but what tests put there.
ACCESS_KEY = "mainspring"
SECRET_KEY = "mainspring-tests"  # noqa: S105
REGION = "us-east-1"


class S3(Ensemble):
    """The address is its endpoint. A bucket is a folder below ``buckets``: whoever needs one makes it there."""

    name = "s3"
    packages = ("golang-go",)

    def installed(self) -> bool:
        return _program().exists()

    def missing_packages(self) -> tuple[str, ...]:
        return () if self.installed() or shutil.which("go") else self.packages

    def install(self) -> None:
        if not shutil.which("go"):
            raise ServiceUnavailable(f"{self.name} is built of Go's modules, and there is no go")
        _build()

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
            str(_program()),
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


def _program() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mainspring" / f"versitygw-{_VERSION}"


def _build() -> None:
    """Minutes of processor time. It is there whole, or not at all."""
    program = _program()
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        command = ["go", "install", "-trimpath", f"{_MODULE}@{_VERSION}"]
        environment = os.environ | {"GOBIN": scratch, "GOFLAGS": "-modcacherw"}
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=scratch,
                capture_output=True,
                text=True,
                check=False,
                timeout=_BUILT_WITHIN_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise ServiceUnavailable(f"s3 cannot be had: {' '.join(command)} did not end") from error
        if done.returncode != 0:
            raise ServiceUnavailable(f"s3 cannot be had: {' '.join(command)}\n{done.stderr[-2000:]}")
        (Path(scratch) / "versitygw").rename(program)
