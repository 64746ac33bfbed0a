"""Prometheus and Alertmanager with promtool and amtool. Each test starts them with its own configuration."""

import os
import shutil
from pathlib import Path

from tools.services.service import ServiceUnavailable
from tools.services.unpacked import Unpacked


class Prometheus(Unpacked):
    name = "prometheus"
    packages = ("prometheus",)
    programs = ("prometheus", "promtool")


class Alertmanager(Unpacked):
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
