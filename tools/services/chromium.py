"""Chromium, for the tests of the dashboard and for pictures of it. ``CHROMIUM`` names another one."""

import os
import shutil

from tools.services.program import Program


class Chromium(Program):
    name = "chromium"
    packages = ("chromium",)

    def path(self) -> str:
        return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
