"""How a run is executed: retries, timeouts, limits, labels and retention."""

import re
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, Micros
from mainspring.core.model.cluster.labels import check_labels_kept
from mainspring.core.model.limits.limits import Breaker, Limit, Limiter, build_limiters, check_limits
from mainspring.core.model.runs.names import (
    MAX_NAME,
    MAX_WEIGHT,
)
from mainspring.core.model.runs.retention import check_class
from mainspring.core.model.runs.retry import RetryPolicy

_is_traceparent = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01").fullmatch


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The execution policy of a run, stored once beside its payload."""

    retry: RetryPolicy = RetryPolicy()
    #: The timeout of one attempt. It is always finite, so that a hung handler is always detected.
    timeout: Micros = HOUR
    guarantee: Literal["at-least-once", "at-most-once"] = "at-least-once"
    #: Runs with the same key execute one at a time, in the order in which they came due.
    ordering_key: str = ""
    #: Required labels as sorted words. Only a worker that has all of them may run it.
    requires: tuple[str, ...] = ()
    #: The limits and the circuit breaker that the run must pass before it is queued.
    limits: tuple[Limit, ...] = ()
    breaker: Breaker | None = None
    #: The number of worker slots that the run occupies.
    weight: int = 1
    #: The ``traceparent`` of its attempts; empty: not traced. It is here because the policy travels with the run.
    trace: str = ""
    #: The retention class of the run after it ended; empty: the tenant's class.
    retention: str = ""

    def check(self) -> None:
        check_kind("retry", self.retry, RetryPolicy)
        self.retry.check()
        check_whole("timeout", self.timeout, 1, 30 * DAY, "more than 0 and at most 30 days")
        check_word("guarantee", self.guarantee, ("at-least-once", "at-most-once"))
        check_kind("orderingKey", self.ordering_key, str)
        if len(self.ordering_key) > MAX_NAME or not self.ordering_key.isprintable():
            raise Invalid(
                "orderingKey", f"{self.ordering_key[:40]!r} is not a key", f"at most {MAX_NAME} printable characters"
            )
        check_labels_kept("requires", self.requires)
        check_limits(self.limits)
        if self.breaker is not None:
            check_kind("breaker", self.breaker, Breaker)
            self.breaker.check()
        check_whole("weight", self.weight, 1, MAX_WEIGHT, f"1 to {MAX_WEIGHT}")
        check_class("retention", self.retention)
        check_kind("trace", self.trace, str)
        if self.trace and not _is_traceparent(self.trace):
            raise Invalid("trace", f"{self.trace[:60]!r} is no traceparent", "00-(32 digits)-(16 digits)-01")

    def limiters(self, tenant: str, task: str) -> tuple[Limiter, ...]:
        """Return the limiters that a run of this task must pass, in locking order."""
        if not self.limits and self.breaker is None:
            return ()
        return build_limiters(tenant, task, self.limits, self.breaker)


DEFAULT_POLICY = RunPolicy()
#: The fields that a request sets one by one, under the same name. The others combine several options of a request, or
#: are internal.
PLAIN_FIELDS = tuple(
    name for name in RunPolicy.__struct_fields__ if name not in ("retry", "timeout", "requires", "trace")
)


#: Policies that passed the check, by identity: the same few are submitted millions of times. Equality is not enough, as
#: an invalid policy can equal a valid one (1 == 1.0 == True). The references keep the ids from being reused.
_checked: dict[int, RunPolicy] = {}


def check_policy(policy: RunPolicy) -> None:
    check_kind("policy", policy, RunPolicy)
    policy.check()
    if len(_checked) >= 1_000:
        _checked.clear()
    _checked[id(policy)] = policy
