"""Ingest service: creates jobs from requests of a log, and acknowledges each when its job is committed or refused."""

import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.ingest import JobRequest, Rejection, RequestLogReader
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.runtime.service import TickingService

#: Returns for each request None, or why it was not made. The mapping has the quotas with waiting requests: later
#: requests against them are not made. ``StoreUnavailable`` means that the call is to be repeated.
CreateJobs = Callable[[Sequence[JobRequest], Mapping[str, Rejection]], Awaitable[list[Rejection | None]]]

#: How long a request beyond a quota waits. Later requests of its partition are read again after a restart, so this must
#: be far less than the time for which keys are remembered.
MAX_WAIT: Micros = 10 * MINUTE
_BATCH = 1_000
_WAIT: Micros = SECOND // 2
#: Requests beyond a quota that wait in memory, and the interval of their retries.
_MAX_WAITING = 10_000
_RETRY_INTERVAL: Micros = SECOND
_UNAVAILABLE_INTERVAL: Micros = SECOND


class _Request(msgspec.Struct, frozen=True):
    request: JobRequest
    #: Why and since when the request waits; None if it has not been tried yet.
    why: Rejection | None = None
    since: Micros = 0

    @property
    def quota(self) -> str:
        return "" if self.why is None else self.why.lane


class Ingest(TickingService):
    """Creates jobs from requests. Runs in every scheduler; the log assigns its records to them.

    1. A crash between the commit and ``done`` delivers a request again. Its key makes that harmless.
    2. A waiting request is retried in order of arrival. Later requests against the same quota (a tenant's runs, or its
       recurring jobs) wait behind it.
    3. A request that still has to wait after ``MAX_WAIT`` is refused. When too many wait, the newest are refused of the
       quota with the most waiting requests.
    4. Requests behind a refused one are judged by themselves.
    """

    def __init__(self, log: RequestLogReader, create: CreateJobs, clock: Clock, wakeup: Wakeup) -> None:
        super().__init__("ingest", clock, wakeup)
        #: Jobs created, and requests refused.
        self.created = 0
        self.refused = 0
        self.is_unavailable = False
        self._requests = log
        self._create_jobs = create
        self._waiting: list[_Request] = []
        #: Waiting requests to retry in this round. No new requests are taken until it is empty.
        self._retries: list[_Request] = []
        #: Requests taken whose outcome is unknown, because the store did not answer.
        self._unconfirmed: list[_Request] = []
        self._retry_at: Micros = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._retries)

    async def stop(self) -> None:
        await super().stop()
        await self._requests.close()

    async def tick(self) -> Micros:
        try:
            wait = await self._step()
        except BrokerUnavailable as error:
            if not self.is_unavailable:
                self.log.warning("request log unavailable", error=str(error))
            self.is_unavailable = True
            return _UNAVAILABLE_INTERVAL
        self.is_unavailable = False
        return wait

    async def _step(self) -> Micros:
        if not self._unconfirmed:
            self._unconfirmed = await self._next()
        if not self._unconfirmed:
            return 0
        quotas = {one.quota: one.why for one in self._waiting if one.why is not None}
        # A quota with waiting requests is full: hold its other retries without trying them.
        blocked = [one for one in self._unconfirmed if one.why is not None and one.quota in quotas]
        tried = [one for one in self._unconfirmed if one.why is None or one.quota not in quotas]
        answers = list(
            zip(tried, await self._create_jobs([one.request for one in tried], quotas) if tried else (), strict=True)
        )
        now = self.clock.monotonic()
        postponed = blocked + [
            _Request(one.request, why, now if one.why is None else one.since)
            for one, why in answers
            if why is not None and why.later
        ]
        kept = [one for one in postponed if now - one.since < MAX_WAIT]
        waiting, excess = _limit_waiting(self._waiting + kept, _MAX_WAITING - len(self._retries))
        refused = [(one.request, why) for one, why in answers if why is not None and not why.later]
        refused += _build_refusals((one for one in postponed if now - one.since >= MAX_WAIT), "waited for too long")
        refused += _build_refusals(excess, "too many requests are waiting")
        if refused:
            await self._requests.refuse(refused)
        created = [one.request for one, why in answers if why is None]
        await self._requests.done(created)
        self._unconfirmed = []
        if kept and not self._waiting:
            self._retry_at = now + _RETRY_INTERVAL
        self._waiting = waiting
        self.created += len(created)
        self.refused += len(refused)
        if refused:
            request, why = refused[0]
            # Only mapped records name their topic.
            known = {"topic": request.topic, "hint": why.hint}
            self.log.warning(
                "records moved to the dead-letter topic",
                records=len(refused),
                first=why.detail,
                **{name: text for name, text in known.items() if text},
            )
        return 0

    async def _next(self) -> list[_Request]:
        if self._waiting and not self._retries and self.clock.monotonic() >= self._retry_at:
            self._retries, self._waiting = self._waiting, []
        if self._retries:
            tried, self._retries = self._retries[:_BATCH], self._retries[_BATCH:]
            return tried
        return [_Request(request) for request in await self._requests.take(_BATCH, _WAIT)]

    def health(self) -> dict[str, object]:
        return {
            "state": "away" if self.is_unavailable else "ok",
            "made": self.created,
            "refused": self.refused,
            "waiting": self.waiting,
        }


def _limit_waiting(waiting: list[_Request], limit: int) -> tuple[list[_Request], list[_Request]]:
    """Split the waiting requests into those that stay and those beyond ``limit``: the newest of the fullest quotas."""
    if len(waiting) <= limit:
        return waiting, []
    quotas = Counter(one.quota for one in waiting)
    fullest = [(-number, quota) for quota, number in quotas.items()]
    heapq.heapify(fullest)
    for _ in range(len(waiting) - limit):
        number, quota = fullest[0]
        heapq.heapreplace(fullest, (number + 1, quota))
    room = {quota: -number for number, quota in fullest}
    stay, excess = list[_Request](), list[_Request]()
    for one in waiting:
        room[one.quota] -= 1
        (excess if room[one.quota] < 0 else stay).append(one)
    return stay, excess


def _build_refusals(requests: Iterable[_Request], reason: str) -> list[tuple[JobRequest, Rejection]]:
    """Build the final refusals from the reason why each request waited."""
    return [
        (
            one.request,
            msgspec.structs.replace(
                one.why,
                detail=f"{one.why.detail}: {reason}",
                hint="send the request again when the quota has room",
                later=False,
            ),
        )
        for one in requests
        if one.why is not None
    ]
