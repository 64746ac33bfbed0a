"""Many objects by a few threads."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial


async def in_parts(
    do: Callable[[Callable[[], None]], Awaitable[None]],
    put: Callable[[str, bytes], None],
    objects: Sequence[tuple[str, bytes]],
    threads: int,
) -> None:
    """A part for each thread: to hand over each object by itself takes this process as long as to send it. A part ends
    with the first of its objects that fails."""

    def put_part(part: Sequence[tuple[str, bytes]]) -> None:
        for name, data in part:
            put(name, data)

    parts = [part for first in range(threads) if (part := objects[first::threads])]
    await asyncio.gather(*(do(partial(put_part, part)) for part in parts))
