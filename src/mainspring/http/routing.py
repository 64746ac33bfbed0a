"""Finds the handler of a path, for the API and for the dashboard."""

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Routes(Generic[T]):
    """Targets by path template, such as ``/v1/jobs/{id}``. A parameter is one segment of the path.

    A literal path wins over templates; among templates with the same number of segments the first one wins.
    """

    def __init__(self, targets: Mapping[str, T]) -> None:
        self._literal: dict[str, T] = {}
        self._templates: dict[int, list[tuple[re.Pattern[str], T]]] = {}
        for template, target in targets.items():
            if "{" not in template:
                self._literal[template] = target
            else:
                self._templates.setdefault(template.count("/"), []).append((_compile(template), target))

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return the target of a path and the values of its parameters. A trailing slash is ignored."""
        if len(path) > 1:
            path = path.removesuffix("/")
        if path in self._literal:
            return self._literal[path], {}
        for pattern, target in self._templates.get(path.count("/"), ()):
            if found := pattern.fullmatch(path):
                return target, found.groupdict()
        return None


def _compile(template: str) -> re.Pattern[str]:
    parts = re.split(r"{(\w+)}", template)
    return re.compile("".join(f"(?P<{part}>[^/]+)" if n % 2 else re.escape(part) for n, part in enumerate(parts)))
