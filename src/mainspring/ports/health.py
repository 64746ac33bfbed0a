"""Looking at a store without changing it: not even its schema."""

from typing import Protocol

import msgspec

from mainspring.domain.diagnosis import Finding, Signs


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    #: Of the store itself.
    findings: list[Finding]
    #: Of the engine on it; none where the store cannot be read.
    signs: Signs | None = None


class Health(Protocol):
    async def examine(self) -> Examination:
        """A store that cannot be reached is a finding, too."""
        ...
