"""What dead letters have in common: the kind of error, without what differs from run to run."""

import hashlib
import re

_LONGEST = 1_000
#: Ids, addresses, numbers and whatever is quoted differ from run to run.
_VARYING = re.compile(r"""'[^']*'|"[^"]*"|\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}\b|[0-9]+""")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")


def fingerprint_of(reason: str, error: str) -> str:
    """16 hexadecimal digits, the same for errors of one kind. The task is not part of it."""
    digest = hashlib.blake2b(f"{reason}\0{kind_of(error)}".encode("utf-8", "replace"), digest_size=8)
    return digest.hexdigest()


def kind_of(error: str) -> str:
    """The last line that says something, where a traceback has its exception, with the varying parts left out."""
    return _VARYING.sub("…", last_line(error))


def exception_of(error: str) -> str:
    """The name of the exception, without what it says; empty: there is none."""
    found = _EXCEPTION.match(last_line(error))
    return "" if found is None else found[1]


def last_line(error: str) -> str:
    lines = [line.strip() for line in error[-_LONGEST:].splitlines()]
    return next((line for line in reversed(lines) if line), "")
