"""Jobs that are taken in while the store is away: the log of requests has them, and they are made when it is back."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from mainspring.core.model.base.errors import EngineUnavailable, StoreUnavailable
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.ingest import Accepting
from mainspring.http.schemas.jobs import JobIn, past_of

#: A store that was away is asked again by one request after so long; the others do not wait for it.
_AGAIN_AFTER: Micros = 2 * SECOND


class Acceptance:
    """The id of a job is made before anything is asked, so a submit whose outcome is unknown is not made twice. Whoever
    comes again with the same idempotency key is told the same id, though nobody can look the first one up."""

    def __init__(self, log: Accepting, clock: Clock, bound_to: str | None) -> None:
        """``bound_to``: the tenant that the log's requests are for; None: any."""
        self._log = log
        self._clock = clock
        self._bound_to = bound_to
        self._away = False
        self._ask_at: Micros = 0

    async def stored(
        self,
        run: NewRun,
        told: NewRun,
        fields: JobIn,
        make: Callable[[NewRun], Awaitable[None]],
        check: Callable[[], Awaitable[None]],
    ) -> bool:
        """Make a job. False: it is in the log, and will be made.

        ``told``: the same with the id that it has in the log. ``check``: what can be refused without the store. Nobody
        looks again at what the caller may do.
        """
        if not self._away or self._clock.monotonic() >= self._ask_at:
            # Nobody else asks until this one has its answer, where it was away before.
            self._ask_at = self._clock.monotonic() + _AGAIN_AFTER + 10 * SECOND
            try:
                await make(told if self._away else run)
            except StoreUnavailable:
                self._away = True
                self._ask_at = self._clock.monotonic() + _AGAIN_AFTER
            except asyncio.CancelledError:
                # Whoever asked has left, and nothing is known.
                self._ask_at = 0
                raise
            except Exception:
                # A refusal is an answer, too.
                self._away = False
                raise
            else:
                self._away = False
                return True
        if self._bound_to not in (None, run.tenant):
            raise StoreUnavailable("the log of requests is not for this tenant")
        await check()
        await self._accept(told, fields)
        return False

    async def _accept(self, run: NewRun, fields: JobIn) -> None:
        run.check()
        past = past_of(run, self._clock.now())
        if past is not None:
            raise past
        once = run.id if run.idempotency is None else run.idempotency.key
        # The record's key is for order where there is one, so what makes it once is in the body.
        body = msgspec.json.encode(msgspec.structs.replace(fields, idempotency_key=once))
        key = run.policy.ordering_key or once
        try:
            await self._log.accept(body, key=key, tenant=run.tenant, run=run.id, author=run.author)
        except EngineUnavailable as error:
            raise StoreUnavailable(str(error)) from error
