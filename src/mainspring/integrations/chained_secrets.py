"""Reads secrets from several sources in order."""

from collections.abc import Sequence

from mainspring.core.ports.secrets import Secrets


class ChainedSecrets:
    """Returns a secret from the first source that has it."""

    def __init__(self, places: Sequence[Secrets]) -> None:
        self._places = places

    def read(self, name: str) -> str | None:
        for place in self._places:
            if (found := place.read(name)) is not None:
                return found
        return None
