"""Signatures of outgoing calls: an HMAC over the time, the run and the body."""

import hashlib
import hmac

from mainspring.core.model.base.instant import SECOND, Instant

HEADER = "X-Mainspring-Signature"


def signature(secret: str, now: Instant, run: str, fence: int, body: bytes) -> str:
    """Return ``t=1700000000,v1=…``: the time in seconds, and the hexadecimal HMAC-SHA256 of ``t.run.fence.body``."""
    moment = now // SECOND
    signed = f"{moment}.{run}.{fence}.".encode() + body
    return f"t={moment},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
