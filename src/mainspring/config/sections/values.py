"""The kinds of values that settings have, and files that settings name."""

from pathlib import Path
from typing import Annotated, TypeAlias

from mainspring.core.model.base.errors import Invalid

#: Microseconds, written as "30s" or as a number of seconds.
Span: TypeAlias = Annotated[int, "duration"]
#: Words by name, written as "name=word word,other=word", or as a table.
Table: TypeAlias = Annotated[dict[str, tuple[str, ...]], "table"]
#: Slots by priority, written as "1:100,2:50", or as a table.
Priorities: TypeAlias = Annotated[dict[str, int], "priorities"]
#: True for all, false for none, or a table of allowed ones by name.
Commands: TypeAlias = Annotated[bool | dict[str, tuple[str, ...]], "commands"]
#: A table of settings for each name; outside of a file it is written as JSON.
Tables: TypeAlias = Annotated[dict[str, dict[str, object]], "tables"]
#: One address, or a list. A list is kept as JSON text.
Addresses: TypeAlias = Annotated[str, "addresses"]
#: Never shown, not even in errors.
Secret: TypeAlias = Annotated[str, "secret"]


def read_file(where: str, path: str) -> bytes:
    """Read a file that a setting names."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise Invalid(where, f"{path} cannot be read: {error.strerror}") from None
