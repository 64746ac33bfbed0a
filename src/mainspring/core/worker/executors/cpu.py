"""Measures the CPU time of an attempt, as far as it can be separated from its neighbors."""

import resource
import time

from mainspring.core.model.base.instant import SECOND, Micros


def read_thread() -> Micros:
    """Return the CPU time of this thread so far, without threads and processes that it starts."""
    return time.thread_time_ns() // 1_000


def read_process() -> Micros:
    """Return the CPU time so far of this process with all its threads, and of the processes it has waited for."""
    return sum(
        sum_cpu(usage)
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def sum_cpu(usage: resource.struct_rusage) -> Micros:
    return round((usage.ru_utime + usage.ru_stime) * SECOND)
