"""Several places, one after the other."""

from collections.abc import Sequence

from mainspring.core.ports.secrets import Secrets


class SeveralSecrets:
    """The first place that has it."""

    def __init__(self, places: Sequence[Secrets]) -> None:
        self._places = places

    def read(self, name: str) -> str | None:
        for place in self._places:
            if (found := place.read(name)) is not None:
                return found
        return None
