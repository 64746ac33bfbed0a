"""Tasks that the engine itself has in every worker. Nobody else's tasks have these names."""

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import Micros

#: Its payload is a workflow, and its runs make instances of it.
WORKFLOW = "workflow"
#: Its runs are fan-outs …
FAN_OUT = "fan_out"
#: … and this one gathers a part of one, or cleans up behind it.
FAN_IN = "fan_in"
#: Its runs tell webhooks what happened.
WEBHOOK = "event_webhook"
#: Its runs tell people of problems.
NOTIFICATION = "event_notification"

RESERVED = frozenset({WORKFLOW, FAN_OUT, FAN_IN, WEBHOOK, NOTIFICATION})


def check_own_task(name: str) -> None:
    """Refuse a task of an application that would stand in the place of one of these."""
    if name in RESERVED:
        raise Conflict(f"task {name!r} is built in; give yours another name")


def check_start_within(task: str, start_within: Micros | None) -> None:
    """A fan-out begins anew at every look, and would be found late at one of them."""
    if task == FAN_OUT and start_within is not None:
        raise Invalid("startWithin", "does not go with a fan-out", "say it in payload.options, for its members")
