"""Built-in tasks that every worker has. Applications cannot use their names."""

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import Micros

#: The payload is a workflow; the runs create instances of it.
WORKFLOW = "workflow"
#: Its runs are fan-outs.
FAN_OUT = "fan_out"
#: Its runs gather a part of a fan-out, or clean up after one.
FAN_IN = "fan_in"
#: Its runs deliver events to webhooks.
WEBHOOK = "event_webhook"
#: Its runs send alerts.
NOTIFICATION = "event_notification"

RESERVED = frozenset({WORKFLOW, FAN_OUT, FAN_IN, WEBHOOK, NOTIFICATION})


def check_own_task(name: str) -> None:
    """Refuse an application task that has the name of a built-in task."""
    if name in RESERVED:
        raise Conflict(f"task {name!r} is built in; give yours another name")


def check_start_within(task: str, start_within: Micros | None) -> None:
    """Refuse ``startWithin`` for a fan-out: it starts again at every check, and one of those would be late."""
    if task == FAN_OUT and start_within is not None:
        raise Invalid("startWithin", "does not go with a fan-out", "say it in payload.options, for its members")
