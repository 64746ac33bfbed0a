"""Writes into what is built which commit it is of. Hatchling calls it.

``BUILD_COMMIT`` and ``BUILD_DATE`` say so where there is no git, as in an image.
"""

import json
import os
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACE = "mainspring/core/runtime"


class BuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        module = runpy.run_path(str(Path(self.root, "src", _PLACE, "build.py")))
        name = module["FILE"]
        # A development installation asks git each time; a source distribution has the file already.
        if version == "editable" or Path(self.root, "src", _PLACE, name).exists():
            return
        if commit := os.environ.get("BUILD_COMMIT"):
            build = module["Build"](commit, os.environ.get("BUILD_DATE", ""))
        else:
            build = module["read_checkout"](Path(self.root))
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name, name)
        file.write_text(json.dumps(build._asdict()) + "\n")
        prefix = "src/" if self.target_name == "sdist" else ""
        build_data["force_include"][str(file)] = f"{prefix}{_PLACE}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
