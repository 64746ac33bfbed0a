"""kcat: a client of Kafka that is not ours, for tests with a producer that knows nothing of us."""

import shutil

from tools.services.program import Program


class Kcat(Program):
    name = "kcat"
    packages = ("kcat",)

    def path(self) -> str:
        return shutil.which("kcat") or ""
