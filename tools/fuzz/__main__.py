"""Search for inputs that are not handled as documented: ``make fuzz SECONDS=600``, or ``python -m tools.fuzz cron``.

An input is handled well if it is accepted or refused with a documented error, within a number of executed lines and
within the memory that the process may use. The first that is not is reduced to a small one and printed; exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, given, seed, settings

from tools.fuzz import requests, texts
from tools.fuzz.target import Target

TARGETS = texts.TARGETS | requests.TARGETS
#: Memory beyond what is in use when the search begins.
_MEMORY = 1024 * 1024 * 1024
_EXAMPLES_PER_ROUND = 500


def search(target: Target, examples: int, number: int | None = None) -> None:
    """Try so many inputs. ``number``: of the sequence of random inputs; by default they are the same each time."""
    options = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=number is None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    test = options(given(target.inputs)(target.check))
    (test if number is None else seed(number)(test))()


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let the process allocate no more than ``_MEMORY`` beyond what it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", default=sorted(TARGETS), metavar="TARGET", help=", ".join(sorted(TARGETS))
    )
    parser.add_argument("--seconds", type=int, help="search for so long per target, with other inputs each time")
    parser.add_argument("--examples", type=int, help="how many inputs per target, without --seconds")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - TARGETS.keys():
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(sorted(TARGETS))}")
    with bounded_memory():
        for name in arguments.targets:
            target = TARGETS[name]
            count = arguments.examples or target.examples
            if arguments.seconds is None:
                # In rounds: Hypothesis keeps what it has tried of each in memory.
                for number, first in enumerate(range(0, count, _EXAMPLES_PER_ROUND)):
                    search(target, min(_EXAMPLES_PER_ROUND, count - first), number)
            else:
                count = 0
                until = time.monotonic() + arguments.seconds
                for number in itertools.count(int(time.time())):
                    if time.monotonic() >= until:
                        break
                    search(target, _EXAMPLES_PER_ROUND, number)
                    count += _EXAMPLES_PER_ROUND
            print(f"{name}: {count} inputs, each handled as documented", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
