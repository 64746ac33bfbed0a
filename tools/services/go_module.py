"""A program that is built of Go's modules, once for all clones of a user."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from tools.services.program import Program
from tools.services.service import ServiceUnavailable, cache

_BUILT_WITHIN_SECONDS = 1_800


def build(name: str, program: Path, command: list[str], folder: Path | None = None) -> None:
    """Minutes of processor time. It is there whole, or not at all. ``command``: leaves what it makes in ``GOBIN``;
    ``folder``: where it is run, if anywhere."""
    if not shutil.which("go"):
        raise ServiceUnavailable(f"{name} is built of Go's modules, and there is no go")
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        try:
            done = subprocess.run(
                command,
                env=os.environ | {"GOBIN": scratch, "GOFLAGS": "-modcacherw"},
                cwd=folder or scratch,
                capture_output=True,
                text=True,
                check=False,
                timeout=_BUILT_WITHIN_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise ServiceUnavailable(f"{name} cannot be had: {' '.join(command)} did not end") from error
        if done.returncode != 0:
            raise ServiceUnavailable(f"{name} cannot be had: {' '.join(command)}\n{done.stderr[-2000:]}")
        [made] = Path(scratch).iterdir()
        made.rename(program)


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
        build(self.name, self.program, ["go", "install", "-trimpath", f"{self.module}@{self.version}"])
