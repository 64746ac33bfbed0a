"""Programs of Debian's packages without the daemons these start: they are unpacked beside the other servers' files.

The address is the folder of the programs.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from tools.services.program import Program
from tools.services.service import ServiceUnavailable


class Unpacked(Program):
    #: All of these must be there.
    programs: ClassVar[tuple[str, ...]]

    def path(self) -> str:
        ours = [str(self.directory / "unpacked" / "usr" / folder) for folder in ("bin", "sbin")]
        for folder in (*ours, *os.get_exec_path()):
            if all(shutil.which(program, path=folder) for program in self.programs):
                return folder
        return ""

    def missing_packages(self) -> tuple[str, ...]:
        """Nothing that Debian's tools should install."""
        return ()

    def install(self) -> None:
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise ServiceUnavailable(f"{self.name} is not installed; on Debian it is in {' '.join(self.packages)}")
        with tempfile.TemporaryDirectory() as folder:
            self.unpack(folder)
        if not self.installed():
            raise ServiceUnavailable(f"{self.name}: {' '.join(self.programs)} are not in {' '.join(self.packages)}")

    def unpack(self, folder: str) -> None:
        """``folder``: for what is downloaded."""
        self._run(["apt-get", "download", *self.packages], folder)
        for package in Path(folder).glob("*.deb"):
            self._run(["dpkg-deb", "--extract", str(package), str(self.directory / "unpacked")], folder)

    def _run(self, command: list[str], folder: str) -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0 and command[1] == "download" and os.geteuid() == 0:
            # The lists of what there is may be missing or old.
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceUnavailable(f"{self.name} cannot be had: {' '.join(command)}\n{done.stderr[-2000:]}")
