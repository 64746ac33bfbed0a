"""Prometheus and Alertmanager with promtool and amtool, of Debian's packages but without the daemons these start.

The packages are unpacked beside the other servers' files. Whoever tests starts them with a configuration of their own.
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


class _Unpacked(Program):
    #: All of these must be there.
    programs: ClassVar[tuple[str, ...]]

    def path(self) -> str:
        for folder in (str(self._unpacked), *os.get_exec_path()):
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

    @property
    def _unpacked(self) -> Path:
        return self.directory / "unpacked" / "usr" / "bin"

    def _run(self, command: list[str], folder: str) -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0 and command[1] == "download" and os.geteuid() == 0:
            # The lists of what there is may be missing or old.
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceUnavailable(f"{self.name} cannot be had: {' '.join(command)}\n{done.stderr[-2000:]}")


class Prometheus(_Unpacked):
    name = "prometheus"
    packages = ("prometheus",)
    programs = ("prometheus", "promtool")


class Alertmanager(_Unpacked):
    """Debian's looks for its templates in one place of the system, so these are put there."""

    name = "alertmanager"
    packages = ("prometheus-alertmanager",)
    programs = ("prometheus-alertmanager", "amtool")
    _templates = Path("/usr/share/prometheus/alertmanager")

    def installed(self) -> bool:
        return super().installed() and (self._templates / "default.tmpl").is_file()

    def install(self) -> None:
        if os.geteuid() != 0:
            raise ServiceUnavailable(f"{self.name} is not installed. On Debian: apt-get install {self.packages[0]}")
        super().install()

    def unpack(self, folder: str) -> None:
        super().unpack(folder)
        self._templates.mkdir(parents=True, exist_ok=True)
        for template in (self.directory / "unpacked").joinpath(*self._templates.parts[1:]).glob("*.tmpl"):
            shutil.copy(template, self._templates)
