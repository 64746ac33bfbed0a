"""Request bodies with placeholders: ``{"$run": "id"}`` and ``{"$data": "order.id"}`` become JSON values, never text."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.run import HeldRun

RUN, DATA = "$run", "$data"
MOST_DATA = 1024 * 1024

#: The properties of a run that a template can use.
_OF_A_RUN: Mapping[str, Callable[[HeldRun], object]] = {
    "id": lambda held: held.id,
    "attempt": lambda held: held.attempt,
    "fence": lambda held: held.fence,
    "task": lambda held: held.task,
    "queue": lambda held: held.queue,
    "tenant": lambda held: held.tenant,
    "jobId": lambda held: held.job_id,
    "dueAt": lambda held: isoformat(held.due),
    "scheduledAt": lambda held: None if held.scheduled_at is None else isoformat(held.scheduled_at),
}


def is_template(body: bytes) -> bool:
    """Return whether there may be placeholders; a body without any is sent unchanged, byte for byte."""
    return b'"$run"' in body or b'"$data"' in body


def check_template(body: Any, data: Any) -> None:
    """Raise ``Invalid`` for a template that could never be filled in."""
    try:
        _Filling(data, None).fill(body)
    except RecursionError:
        raise Invalid("payload.body", "is nested too deeply") from None


def fill_template(body: Any, data: Any, held: HeldRun) -> Any:
    return _Filling(data, held).fill(body)


class _Filling:
    """Fills in one body. Limits the inserted data: a short body could name a long value a thousand times."""

    def __init__(self, data: Any, held: HeldRun | None) -> None:
        self._data = data
        self._held = held
        self._room = MOST_DATA

    def fill(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.fill(each) for each in value]
        if not isinstance(value, dict):
            return value
        if RUN in value or DATA in value:
            if len(value) > 1:
                raise Invalid("payload.body", f"{RUN} and {DATA} stand alone in their object", '{"$run": "id"}')
            return self._of_run(value[RUN]) if RUN in value else self._of_data(value[DATA])
        return {key: self.fill(each) for key, each in value.items()}

    def _of_run(self, name: object) -> object:
        if not isinstance(name, str) or name not in _OF_A_RUN:
            raise Invalid("payload.body", f"{name!r:.60} is nothing of a run", ", ".join(_OF_A_RUN))
        return None if self._held is None else _OF_A_RUN[name](self._held)

    def _of_data(self, path: object) -> object:
        """Return a value by its path: names and list indexes, separated by dots; empty for all data."""
        if not isinstance(path, str):
            raise Invalid("payload.body", f"{path!r:.60} is no path", "as in order.lines.0.price")
        found = self._data
        for part in filter(None, path.split(".")):
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and re.fullmatch("[0-9]{1,6}", part) and int(part) < len(found):
                found = found[int(part)]
            else:
                raise Invalid("payload.body", f"there is no {path[:80]!r} in payload.data")
        self._room -= len(msgspec.json.encode(found))
        if self._room < 0:
            raise Invalid("payload.body", "takes too much from payload.data", f"at most {MOST_DATA} bytes")
        return found
