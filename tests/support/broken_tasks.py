"""An application that a child process cannot load: its import fails there."""

import sys
from collections.abc import Mapping

from mainspring.core.worker.handler import Handler

if "pytest" not in sys.modules:
    raise ImportError("no database driver here")


class Application:
    def handlers(self) -> Mapping[str, Handler]:
        return {}


app = Application()
