"""The options of a call, and calls that are ready to be submitted."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY
from mainspring.core.model.runs.unique import Unique as UniqueKey
from mainspring.core.model.workflows.dependencies import DependencyRule

T = TypeVar("T")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task's runs, unless a call overrides them."""

    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = RunPolicy()
    at: Instant | None = None
    delay: int = 0
    start_within: int | None = None
    deadline: int | None = None
    #: The preset that sets the timeout by priority, unless a call sets the timeout.
    preset: str | None = None
    #: A second submit with the same key creates nothing.
    unique: str | UniqueKey | None = None
    #: None: the application's tenant.
    tenant: str | None = None
    #: Runs with the same key share a placement group of a sharded store.
    placement: str = ""
    about: About | None = None
    #: A connection of the application, in whose transaction the run is submitted.
    connection: object | None = None
    #: The runs or the calls of the same batch that it depends on, and the dependency rule.
    depends_on: tuple[Any, ...] = ()
    when: DependencyRule = DependencyRule.ALL_SUCCEEDED
    #: For a task that is declared elsewhere: the options that the caller sets, in the names of ``JobFields``. The
    #: task catalog has the others. None: all options are set here.
    given: frozenset[str] | None = None


#: Options that apply to a single call only.
_OF_ONE_CALL = ("at", "delay", "unique", "tenant", "placement", "connection", "depends_on")


def find_single_call_option(options: Options) -> str | None:
    """Return the first option that applies to a single call only, so it cannot be used on a schedule."""
    usual = Options()
    if options.about is not None and options.about != About(tags=options.about.tags):
        return "about"
    return next((name for name in _OF_ONE_CALL if getattr(options, name) != getattr(usual, name)), None)


class PreparedCall(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """A validated call that can be submitted alone or with others: ``app.submit_many([…])``."""

    task: str
    payload: bytes
    options: Options
    read: Callable[[bytes | None], Any]
