"""libfaketime: not a server but a library, that gives a process a clock of its own. Its address is its path."""

from pathlib import Path

from tools.services.program import Program


class Faketime(Program):
    name = "faketime"
    packages = ("libfaketime",)

    def path(self) -> str:
        # The one for programs with threads.
        found = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
        return str(found[0]) if found else ""
