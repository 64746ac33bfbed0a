"""A program that is built of Go's modules, once for all clones of a user."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from tools.services.program import Program
from tools.services.service import ServiceUnavailable

_BUILT_WITHIN_SECONDS = 1_800


def cache() -> Path:
    """What all clones of a user share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainspring"


class GoProgram(Program):
    packages = ()
    module: ClassVar[str]
    version: ClassVar[str]

    @property
    def program(self) -> Path:
        return cache() / f"{self.name}-{self.version}"

    def path(self) -> str:
        return str(self.program) if self.program.exists() else ""

    def install(self) -> None:
        """Minutes of processor time. It is there whole, or not at all."""
        if not shutil.which("go"):
            raise ServiceUnavailable(f"{self.name} is built of Go's modules, and there is no go")
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            command = ["go", "install", "-trimpath", f"{self.module}@{self.version}"]
            environment = os.environ | {"GOBIN": scratch}
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
                raise ServiceUnavailable(f"{self.name} cannot be had: {' '.join(command)} did not end") from error
            if done.returncode != 0:
                raise ServiceUnavailable(f"{self.name} cannot be had: {' '.join(command)}\n{done.stderr[-2000:]}")
            (Path(scratch) / self.name).rename(self.program)
