"""How much CPU an attempt used, as far as it can be told apart from its neighbours."""

import resource
import time

from mainspring.core.model.base.instant import SECOND, Micros


def of_thread() -> Micros:
    """Of this thread, so far. Threads and processes that it starts are not in it."""
    return time.thread_time_ns() // 1_000


def of_process() -> Micros:
    """Of this process with all its threads, so far, and of the processes that it has waited for."""
    return sum(
        cpu_of(usage)
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def cpu_of(usage: resource.struct_rusage) -> Micros:
    return round((usage.ru_utime + usage.ru_stime) * SECOND)
