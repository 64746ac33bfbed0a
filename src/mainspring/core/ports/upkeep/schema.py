"""The port for schema migrations, and their compatibility with older programs."""

from enum import StrEnum
from typing import Protocol

import msgspec

#: Ends the error about a store that a checkout from before the first release made.
TOO_OLD = "start with a new store, or run that checkout"


class MigrationKind(StrEnum):
    #: Older programs continue to work next to newer ones.
    EXPAND = "expand"
    #: Removes what only older programs use; applied when they are gone.
    CONTRACT = "contract"
    #: Only programs that know this migration work on the schema.
    BREAKING = "breaking"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    kind: MigrationKind
    #: The schema version that a program must know to work with it. 0: every program that worked before.
    needs: int


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    applied: tuple[Migration, ...] = ()
    #: Contract migrations that wait until an operator confirms that the old programs are gone.
    waiting: tuple[Migration, ...] = ()


class Migrator(Protocol):
    """A store whose schema can be changed while programs of two versions use it."""

    async def migrate(self, *, contract: bool) -> Migrated:
        """Migrate the schema without opening the store; ``contract`` also removes what no program uses any more."""
        ...
