"""Reads secrets from several sources in order."""

from collections.abc import Sequence

from mainspring.core.ports.secrets import Secrets


class ChainedSecrets:
    """Returns a secret from the first source that has it."""

    def __init__(self, sources: Sequence[Secrets]) -> None:
        self._sources = sources

    def read(self, name: str) -> str | None:
        for source in self._sources:
            if (found := source.read(name)) is not None:
                return found
        return None
