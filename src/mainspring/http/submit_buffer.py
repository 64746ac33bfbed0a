"""Accept jobs while the store is unavailable: the request log keeps them until the store is back."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from mainspring.core.model.base.errors import BrokerUnavailable, StoreUnavailable
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.ingest import RequestLogWriter
from mainspring.http.jobs.reading import explain_past_time
from mainspring.http.schemas.jobs import JobIn

#: While the store is unavailable, one request probes it at this interval. All other requests go to the log at once.
_PROBE_INTERVAL: Micros = 2 * SECOND


class SubmitBuffer:
    """Writes job requests to the request log while the store is unavailable.

    The job id is chosen before any request to the store, so a submit with an unknown outcome creates no second job.
    A client that retries with the same idempotency key gets the same id, although the job cannot be read yet.
    """

    def __init__(self, log: RequestLogWriter, clock: Clock, bound_to: str | None) -> None:
        """``bound_to``: the tenant whose requests the log accepts, or None for every tenant."""
        self._log = log
        self._clock = clock
        self._bound_to = bound_to
        self._is_away = False
        self._probe_at: Micros = 0

    async def submit(
        self,
        run: NewRun,
        buffered: NewRun,
        fields: JobIn,
        make: Callable[[NewRun], Awaitable[None]],
        check: Callable[[], Awaitable[None]],
    ) -> bool:
        """Create a job in the store, or append it to the request log. Return False if it is in the log.

        ``buffered``: the same run with the id that the log uses. ``check``: validates what can be validated without the
        store. The permissions of the caller are not checked again when the log is processed.
        """
        if not self._is_away or self._clock.monotonic() >= self._probe_at:
            # Only one request probes a store that was unavailable; the others must not wait for its answer.
            self._probe_at = self._clock.monotonic() + _PROBE_INTERVAL + 10 * SECOND
            try:
                await make(buffered if self._is_away else run)
            except StoreUnavailable:
                self._is_away = True
                self._probe_at = self._clock.monotonic() + _PROBE_INTERVAL
            except asyncio.CancelledError:
                # The client has hung up, so the state of the store is unknown.
                self._probe_at = 0
                raise
            except Exception:
                # A rejection proves that the store answers.
                self._is_away = False
                raise
            else:
                self._is_away = False
                return True
        if self._bound_to not in (None, run.tenant):
            raise StoreUnavailable("the request log is not for this tenant")
        await check()
        await self._append(buffered, fields)
        return False

    async def _append(self, run: NewRun, fields: JobIn) -> None:
        run.check()
        past = explain_past_time(run, self._clock.now())
        if past is not None:
            raise past
        once = run.id if run.idempotency is None else run.idempotency.key
        # The record's key controls ordering if the job has an ordering key, so the deduplication key goes into the
        # body.
        body = msgspec.json.encode(msgspec.structs.replace(fields, idempotency_key=once))
        key = run.policy.ordering_key or once
        try:
            await self._log.accept(body, key=key, tenant=run.tenant, run=run.id, author=run.author)
        except BrokerUnavailable as error:
            raise StoreUnavailable(str(error)) from error
