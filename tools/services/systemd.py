"""systemd's own tools, which look at units without running any. The address is systemd-analyze."""

import shutil

from tools.services.program import Program


class Systemd(Program):
    name = "systemd"
    packages = ("systemd",)

    def path(self) -> str:
        return shutil.which("systemd-analyze") or ""
