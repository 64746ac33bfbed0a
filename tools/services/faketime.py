"""libfaketime: not a server but a library, that gives a process a clock of its own. Its address is its path."""

from pathlib import Path

from tools.services.service import Service


class Faketime(Service):
    name = "faketime"
    packages = ("libfaketime",)

    def installed(self) -> bool:
        return bool(_libraries())

    def running(self) -> bool:
        return True

    def address(self) -> str:
        return str(_libraries()[0])

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """Nor to stop."""

    def remove(self) -> None:
        """What was installed stays."""


def _libraries() -> list[Path]:
    # The one for programs with threads.
    return sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
