"""Reads a beat schedule from source text without executing it, for hosts without Celery.

It understands only literals: numbers, texts, lists, dicts, names of module-level literals, ``crontab(…)``,
``timedelta(…)``, ``schedule(…)`` and ``solar(…)``.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from mainspring.core.model.base.errors import Invalid
from mainspring.features.schedules.commands.converters.celery_schedules import CrontabFields, Interval, UnknownSchedule

NAMES = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
ZONES = ("timezone", "CELERY_TIMEZONE")
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
}
_CRONTAB = ("minute", "hour")


class NotLiteralError(Exception):
    pass


def read_literals(source: str, path: str) -> tuple[dict[str, Any], str | None]:
    """Return the entries and the zone. Values that are not literals become ``UnknownSchedule`` with position."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Invalid(path, f"is not Python: {error}") from None
    reader = _LiteralReader(tree)
    schedule: ast.expr | None = None
    zone: ast.expr | None = None
    for name, value in reader.settings:
        if name in NAMES:
            schedule = value
        elif name in ZONES:
            zone = value
    if schedule is None:
        raise Invalid(path, "has no literal beat_schedule", "install celery here")
    if not isinstance(schedule, ast.Dict):
        raise Invalid(f"{path}, line {schedule.lineno}", "the schedule is not a literal dict", "install celery here")
    entries: dict[str, Any] = {}
    for key, value in zip(schedule.keys, schedule.values, strict=True):
        try:
            if key is None:
                raise NotLiteralError
            entries[str(reader.value(key))] = reader.value(value)
        except (NotLiteralError, TypeError, ArithmeticError, RecursionError):
            known = key.value if isinstance(key, ast.Constant) else f"line {value.lineno}"
            entries[str(known)] = UnknownSchedule(
                f"line {value.lineno} is not a literal: install celery here to read it"
            )
    try:
        return entries, None if zone is None else str(reader.value(zone))
    except NotLiteralError:
        return entries, None


class _LiteralReader:
    def __init__(self, tree: ast.Module) -> None:
        #: Every assignment, by the last part of its name, and the keywords of ``conf.update(…)``.
        self.settings: list[tuple[str, ast.expr]] = []
        self._globals: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._find_assigned(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._find_assigned(node.target, node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
                self.settings += [(word.arg, word.value) for word in node.keywords if word.arg]
        self._resolving: set[str] = set()

    def _find_assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._globals[target.id] = value
            self.settings.append((target.id, value))
        elif isinstance(target, ast.Attribute):
            self.settings.append((target.attr, value))

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Tuple() | ast.List():
                return [self.value(item) for item in node.elts]
            case ast.Set():
                return {self.value(item) for item in node.elts}
            case ast.Dict():
                if None in node.keys:
                    raise NotLiteralError
                return {
                    self.value(key): self.value(value)
                    for key, value in zip(node.keys, node.values, strict=True)
                    if key is not None
                }
            case ast.UnaryOp(op=ast.USub()):
                return self._compute(operator.neg, self.value(node.operand))
            case ast.BinOp() if type(node.op) in _OPERATORS:
                return self._compute(_OPERATORS[type(node.op)], self.value(node.left), self.value(node.right))
            case ast.Name():
                return self._look_up(node.id)
            case ast.Call():
                return self._evaluate_call(node)
            case _:
                raise NotLiteralError

    def _compute(self, function: Callable[..., Any], *values: object) -> Any:
        if not all(isinstance(value, int | float | timedelta | dict) for value in values):
            raise NotLiteralError
        try:
            return function(*values)
        except (ArithmeticError, TypeError):
            raise NotLiteralError from None

    def _look_up(self, name: str) -> Any:
        if name not in self._globals or name in self._resolving:
            raise NotLiteralError
        self._resolving.add(name)
        try:
            return self.value(self._globals[name])
        finally:
            self._resolving.discard(name)

    def _evaluate_call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        args = [self.value(argument) for argument in node.args]
        kwargs = {str(word.arg): self.value(word.value) for word in node.keywords if word.arg}
        if len(kwargs) < len(node.keywords):
            raise NotLiteralError
        try:
            match name:
                case "dict":
                    return dict(*args, **kwargs)
                case "timedelta":
                    return timedelta(*args, **kwargs)
                case "crontab":
                    # The order of the other three arguments differs between versions of Celery.
                    if len(args) > len(_CRONTAB):
                        raise NotLiteralError
                    return CrontabFields(**dict(zip(_CRONTAB, args, strict=False)), **kwargs)
                case "schedule":
                    every: Any = kwargs.get("run_every", args[0] if args else None)
                    return Interval(every.total_seconds() if isinstance(every, timedelta) else float(every))
                case "solar":
                    return UnknownSchedule("its solar schedule has no cron equivalent")
                case _:
                    pass
        except (TypeError, ValueError):
            pass
        raise NotLiteralError
