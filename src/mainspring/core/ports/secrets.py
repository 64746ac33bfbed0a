"""Where values are kept that must not be in a payload, a setting or the store."""

from typing import Protocol


class Secrets(Protocol):
    """Read when a run is executed, each time: a value that was changed counts from the next run on."""

    def read(self, name: str) -> str | None:
        """The value, or None if there is none by that name. The name is a valid one.

        Called on the worker's loop and in child processes: an adapter that asks a server keeps the answer for a while.
        Raises ``Invalid``, without the value, if what is kept there cannot be used.
        """
        ...
