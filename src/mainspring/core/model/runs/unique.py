"""Unique runs: of one key there is one, while it has not ended or for a period, and what a second one does."""

from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, Micros

MAX_KEY = 200
_WORDS = ("reject", "existing", "replace", "debounce")


class Unique(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key belongs to a tenant. Unlike an idempotency key it says nothing of the request: payloads may differ."""

    key: str
    #: For so long from when it was made, however it ended; None: while it has not ended.
    period: Micros | None = None
    #: What a second one does. reject: it is a conflict. existing: nothing is made, and the answer is the first one.
    #: replace: the first one is skipped (replaced) if it was never started, and the second one is made. debounce: the
    #: first one becomes what the second one asks for, from the payload to the due time, if it was never started, and
    #: keeps its id, its parents and its key. What was started, has ended or belongs to a recurring job is neither
    #: replaced nor changed: then both answer with it, like existing.
    otherwise: Literal["reject", "existing", "replace", "debounce"] = "existing"

    def check(self) -> None:
        check_kind("unique.key", self.key, str)
        if not 0 < len(self.key) <= MAX_KEY or not self.key.isprintable():
            raise Invalid("unique.key", f"{self.key[:40]!r} is not a key", f"1 to {MAX_KEY} printable characters")
        if self.period is not None:
            check_whole("unique.period", self.period, 1_000, 366 * DAY, "1 ms to 366 days")
        check_word("unique.otherwise", self.otherwise, _WORDS)
