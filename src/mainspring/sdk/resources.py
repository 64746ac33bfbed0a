"""Resources of handlers, which a process opens once. They are identified by type."""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.sdk.arguments.signature import Marker

_YIELDING = (AsyncIterator, AsyncGenerator, AsyncIterable, Iterator, Generator, Iterable)


class Provided(Marker):
    """Marks a parameter that receives a resource."""


def provided() -> Any:
    """The default of a parameter that receives a resource by its type: ``async def pay(pool: Pool = provided())``."""
    return _PROVIDED


_PROVIDED = Provided()


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A function that yields once: the code before the yield opens the resource, the code after it closes it."""

    name: str
    kind: Any
    open: Callable[..., Any]
    #: Other resources that it needs, by parameter.
    needs: Mapping[str, Any]


class Resources:
    def __init__(self) -> None:
        self._known: dict[Any, Resource] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, function: Callable[..., Any]) -> None:
        resource = _read(function)
        if resource.kind in self._known:
            first = self._known[resource.kind].name
            raise Conflict(f"{_format_type(resource.kind)} is provided twice, by {first} and by {resource.name}")
        self._known[resource.kind] = resource

    def check(self, who: str, needs: Mapping[str, Any]) -> None:
        """Raise ``Invalid`` if a resource that is needed directly or indirectly is not provided."""
        self._order(who, needs, [], [])

    async def open(self, stack: AsyncExitStack) -> dict[Any, object]:
        """Open all resources, each after those that it needs. Returns them by type."""
        order: list[Resource] = []
        for resource in self._known.values():
            self._order(resource.name, {"": resource.kind}, [], order)
        values: dict[Any, object] = {}
        for resource in order:
            manager = resource.open(**{name: values[kind] for name, kind in resource.needs.items()})
            if hasattr(manager, "__aenter__"):
                values[resource.kind] = await stack.enter_async_context(manager)
            else:
                values[resource.kind] = stack.enter_context(manager)
        return values

    def _order(self, who: str, needs: Mapping[str, Any], asking: list[Any], order: list[Resource]) -> None:
        for parameter, kind in needs.items():
            resource = self._known.get(kind)
            if resource is None:
                raise Invalid(who, f"asks for `{parameter}: {_format_type(kind)}`, which no @app.resource provides")
            if kind in asking:
                raise Invalid(resource.name, "asks for itself", " → ".join(map(_format_type, [*asking, kind])))
            if resource not in order:
                self._order(resource.name, resource.needs, [*asking, kind], order)
                order.append(resource)


def _read(function: Callable[..., Any]) -> Resource:
    name = getattr(function, "__name__", repr(function))
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise Invalid(name, "is no resource: it does not yield", "def pool() -> Iterator[Pool]: … yield pool …")
    hints = get_type_hints(function)
    returned = hints.get("return")
    if get_origin(returned) not in _YIELDING or not get_args(returned):
        raise Invalid(name, "does not say what it yields", "-> AsyncIterator[Pool], or Iterator[Pool]")
    needs = {}
    for parameter in inspect.signature(function).parameters.values():
        if not isinstance(parameter.default, Provided):
            raise Invalid(name, f"parameter {parameter} has no value", "other resources are asked for with provided()")
        needs[parameter.name] = hints.get(parameter.name, Any)
    make = asynccontextmanager if inspect.isasyncgenfunction(function) else contextmanager
    return Resource(name=name, kind=get_args(returned)[0], open=make(function), needs=needs)


def _format_type(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
