"""Limits that belong together under one name, for those who want no numbers of their own."""

from collections.abc import Mapping

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, Micros

#: How long an attempt may take, by priority. It is stopped then, and tried again. What has another priority has that of
#: the last one.
PRESETS: Mapping[str, Mapping[int, Micros]] = {"payouts": {1: MINUTE, 2: 5 * MINUTE, 3: 30 * MINUTE}}


def preset_timeout(name: str, priority: int) -> Micros:
    timeouts = PRESETS.get(name) if isinstance(name, str) else None
    if timeouts is None:
        raise Invalid("preset", f"{name!r:.40} is not a preset", ", ".join(PRESETS))
    return timeouts.get(priority, timeouts[max(timeouts)])
