"""The structured cause of a failure. It crosses a pipe from a child process, so it is a value and not an exception."""

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.handler_errors import GiveUp, RetryLater

#: The maximum number of classes recorded per error, more than real class hierarchies have.
MOST_KINDS = 50


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: The error's class and its base classes with their modules, the most derived first; empty: not known.
    kinds: tuple[str, ...] = ()
    #: The handler asked not to be retried.
    gives_up: bool = False
    #: The delay that the handler asked for before the next attempt.
    after: Micros | None = None


UNKNOWN = Cause()
#: Another attempt would fail in the same way.
FINAL = Cause(gives_up=True)


def build_cause(error: BaseException) -> Cause:
    return Cause(
        kinds=list_kinds(type(error)),
        gives_up=isinstance(error, GiveUp),
        after=error.delay if isinstance(error, RetryLater) else None,
    )


def list_kinds(kind: type[BaseException]) -> tuple[str, ...]:
    """Return the qualified names of an exception class and its bases, except those that all exceptions share."""
    said = [one for one in kind.__mro__ if one not in (BaseException, object)]
    return tuple(f"{one.__module__}.{one.__qualname__}" for one in said[:MOST_KINDS])


#: The cause of an attempt that was stopped; its kinds match those of a timeout that a handler raises itself.
TIMED_OUT = Cause(kinds=list_kinds(TimeoutError))
