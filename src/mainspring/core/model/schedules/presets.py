"""Named sets of time limits."""

from collections.abc import Mapping

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, Micros

#: The attempt timeout by priority; priorities that are not listed use the last entry. An attempt that exceeds its
#: timeout is stopped and retried.
PRESETS: Mapping[str, Mapping[int, Micros]] = {"payouts": {1: MINUTE, 2: 5 * MINUTE, 3: 30 * MINUTE}}


def preset_timeout(name: str, priority: int) -> Micros:
    timeouts = PRESETS.get(name) if isinstance(name, str) else None
    if timeouts is None:
        raise Invalid("preset", f"{name!r:.40} is not a preset", ", ".join(PRESETS))
    return timeouts.get(priority, timeouts[max(timeouts)])
