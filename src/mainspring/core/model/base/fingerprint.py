"""Fingerprints that group dead letters: the kind of error, without the parts that vary between runs."""

import hashlib
import re

from mainspring.core.model.base.headline import find_headline

#: Ids, addresses, numbers and quoted text vary between runs.
_VARYING = re.compile(r"""'[^']*'|"[^"]*"|\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}\b|[0-9]+""")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")


def compute_fingerprint(reason: str, error: str) -> str:
    """Return 16 hexadecimal digits, the same for errors of one kind. The task is not included."""
    digest = hashlib.blake2b(f"{reason}\0{parse_error_kind(error)}".encode("utf-8", "replace"), digest_size=8)
    return digest.hexdigest()


def parse_error_kind(error: str) -> str:
    """Return the headline without the parts that vary."""
    return _VARYING.sub("…", find_headline(error))


def parse_exception_name(error: str) -> str:
    """Return the name of the exception without its message; empty: there is none."""
    found = _EXCEPTION.match(find_headline(error))
    return "" if found is None else found[1]
