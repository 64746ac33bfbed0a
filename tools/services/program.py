"""Something that has to be installed, and is not a server. Its address is its path."""

from abc import abstractmethod

from tools.services.service import Service


class Program(Service):
    @abstractmethod
    def path(self) -> str:
        """Empty: it is not there."""

    def installed(self) -> bool:
        return bool(self.path())

    def running(self) -> bool:
        return True

    def address(self) -> str:
        return self.path()

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """Nor to stop."""

    def remove(self) -> None:
        """The installation stays."""
