"""What is done to the schema of a store, and who can still work on it."""

from enum import StrEnum
from typing import Protocol

import msgspec

#: Ends the error about a store that a checkout from before the first release made.
TOO_OLD = "start with a new store, or run that checkout"


class MigrationKind(StrEnum):
    #: Programs that do not know it work on beside those that do.
    EXPAND = "expand"
    #: It takes away what only older programs use: when they are gone.
    CONTRACT = "contract"
    #: Only programs that know it work on such a schema.
    BREAKING = "breaking"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    kind: MigrationKind
    #: The schema version that a program must know to work on; 0: whichever worked before.
    needs: int


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    applied: tuple[Migration, ...] = ()
    #: Contracts that wait until somebody says that the old programs are gone.
    waiting: tuple[Migration, ...] = ()


class Migrates(Protocol):
    """A store whose schema can be changed while programs of two versions work on it."""

    async def migrate(self, *, contract: bool) -> Migrated:
        """Bring the schema up to date without opening the store; with ``contract`` take away what nobody uses."""
        ...
