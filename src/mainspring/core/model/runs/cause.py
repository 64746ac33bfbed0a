"""What is known of a failure beyond its text. It crosses a pipe from a child process, so it is no exception."""

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.verdicts import GiveUp, RetryLater

#: More classes above one another than anybody writes.
MOST_KINDS = 50


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: The class of the error and those it derives from, each with its module, the nearest first. None: not known.
    kinds: tuple[str, ...] = ()
    #: The handler says that another try is of no use.
    gives_up: bool = False
    #: The handler says after which pause to try again.
    after: Micros | None = None


UNKNOWN = Cause()
#: Another attempt would fail in the same way.
FINAL = Cause(gives_up=True)


def cause_of(error: BaseException) -> Cause:
    return Cause(
        kinds=kinds_of(type(error)),
        gives_up=isinstance(error, GiveUp),
        after=error.delay if isinstance(error, RetryLater) else None,
    )


def kinds_of(kind: type[BaseException]) -> tuple[str, ...]:
    """What every exception is says nothing."""
    said = [one for one in kind.__mro__ if one not in (BaseException, object)]
    return tuple(f"{one.__module__}.{one.__qualname__}" for one in said[:MOST_KINDS])


#: An attempt that had to be stopped: what a handler would see as a timeout of its own.
TIMED_OUT = Cause(kinds=kinds_of(TimeoutError))
