"""Makes the span of a recorded attempt the current span of its handler."""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.handler import AsyncHandler, Handler, SyncHandler

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing


def standing_in(handlers: Mapping[str, Handler], tracing: "Tracing") -> dict[str, Handler]:
    """Wrap handlers, so that each runs inside the span of its attempt. Unrecorded attempts are called as before."""
    return {
        task: msgspec.structs.replace(
            handler,
            invoke=_on_loop(handler.invoke, tracing)
            if isinstance(handler, AsyncHandler)
            else _blocking(handler, tracing),
        )
        for task, handler in handlers.items()
    }


def _on_loop(
    invoke: Callable[[HeldRun], Coroutine[None, None, bytes | None]], tracing: "Tracing"
) -> Callable[[HeldRun], Coroutine[None, None, bytes | None]]:
    from mainspring.core.runtime.tracing.spans import standing

    async def inside(context: Any, held: HeldRun) -> bytes | None:
        with standing(context):
            return await invoke(held)

    def choose(held: HeldRun) -> Coroutine[None, None, bytes | None]:
        # Most attempts have neither: they pay for this line only.
        context = tracing.inside(held) if held.policy.trace or held.scheduled_at is not None else None
        return invoke(held) if context is None else inside(context, held)

    return choose


def _blocking(handler: SyncHandler, tracing: "Tracing") -> Callable[[HeldRun], bytes | None]:
    from mainspring.core.runtime.tracing.spans import standing

    def choose(held: HeldRun) -> bytes | None:
        context = tracing.inside(held)
        if context is None:
            return handler.invoke(held)
        with standing(context):
            return handler.invoke(held)

    return choose
