"""Calls an operation inside this process, with the same checks as a request over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mainspring.core.model.access.access import Principal
from mainspring.core.model.base.errors import Invalid
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Operation
from mainspring.http.problems import restore_names


async def wait_forever() -> None:
    """Never return: the caller is this process, which does not hang up."""
    await asyncio.Event().wait()


async def call_operation(
    api: Api,
    operation: Operation,
    principal: Principal,
    *,
    path: Mapping[str, str] | None = None,
    query: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    left: Callable[[], Awaitable[None]] = wait_forever,
) -> Answer:
    """Call an operation with the permission check, decoding and error texts of a request over HTTP."""
    operation.check_permission(principal)
    written: dict[str, str] = {}
    call = Call(
        operation.permission,
        principal,
        path or {},
        operation.read_query(list(query)),
        operation.read_body(body, written),
        headers or {},
        left,
    )
    try:
        answer: Answer = await operation.handler(api, call)
    except Invalid as error:
        raise restore_names(error, written) from None
    return answer
