"""The port for secrets: values that must not be in a payload, a setting or the store."""

from typing import Protocol


class Secrets(Protocol):
    """Reads secrets. A secret is read for every run that uses it, so a changed value applies from the next run on."""

    def read(self, name: str) -> str | None:
        """Return the value of a secret; None if there is none by that name. The name is a valid one.

        1. Called on the worker's loop and in child processes: one that queries a server must cache its answers.
        2. Raises ``Invalid``, without the value, if the stored value cannot be used.
        """
        ...
