"""Sign-outs that a process remembers."""

import asyncio
from typing import cast

from mainspring.core.model.base.instant import HOUR
from mainspring.core.ports.storage.access import Access
from mainspring.http.auth.authenticator import SignOuts
from mainspring.testing.virtual_time import VirtualClock
from tests.support.virtual import in_virtual_time


class SlowAccess:
    """Answers a question with what was known when it was asked."""

    def __init__(self) -> None:
        self.ended = False
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def sign_out(self, session: str, ends_at: int) -> None:
        self.ended = True

    async def is_signed_out(self, session: str) -> bool:
        found = self.ended
        self.asked.set()
        await self.may_answer.wait()
        return found


@in_virtual_time
async def test_an_older_answer_of_the_store_does_not_undo_a_sign_out() -> None:
    access = SlowAccess()
    sign_outs = SignOuts(cast(Access, access), VirtualClock())
    request = asyncio.ensure_future(sign_outs.includes("a"))
    await access.asked.wait()
    await sign_outs.add("a", HOUR)
    access.may_answer.set()
    assert await request
    assert await sign_outs.includes("a")
