"""Unique runs: one run per key, until it has ended or for a period, and the conflict rule for further submissions."""

from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, Micros

MAX_KEY = 200
_WORDS = ("reject", "existing", "replace", "debounce")


class Unique(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unique key of a tenant. Unlike an idempotency key it does not compare requests: payloads may differ."""

    key: str
    #: How long the key is held from the run's creation, however the run ends; None: until the run has ended.
    period: Micros | None = None
    #: What a second submission does.
    #: - reject: it fails as a conflict.
    #: - existing: no run is created, and the answer is the first run.
    #: - replace: the first run is skipped (replaced) if it was never started, and the second run is created.
    #: - debounce: if the first run was never started, it takes over the second submission, from the payload to the due
    #:   time. It keeps its id, its dependencies and its key.
    #:
    #: A run that was started, has ended or belongs to a recurring job is neither replaced nor changed: replace and
    #: debounce then answer with it, like existing.
    otherwise: Literal["reject", "existing", "replace", "debounce"] = "existing"

    def check(self) -> None:
        check_kind("unique.key", self.key, str)
        if not 0 < len(self.key) <= MAX_KEY or not self.key.isprintable():
            raise Invalid("unique.key", f"{self.key[:40]!r} is not a key", f"1 to {MAX_KEY} printable characters")
        if self.period is not None:
            check_whole("unique.period", self.period, 1_000, 366 * DAY, "1 ms to 366 days")
        check_word("unique.otherwise", self.otherwise, _WORDS)
