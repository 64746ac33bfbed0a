"""Webhook sink: deliveries are runs, so they are retried, ordered, dead-lettered and replayed like others."""

from collections.abc import Iterator, Sequence

import msgspec

from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.events.events import Event
from mainspring.core.model.events.webhooks import QUEUE, Delivery, Webhook
from mainspring.core.model.runs.names import MAX_PAYLOAD
from mainspring.core.model.runs.new_run import NewRun, made_once
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.reserved import WEBHOOK
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.submit.jobs import Jobs

#: Limits of one delivery.
_MAX_EVENTS = 100
_MAX_BYTES = MAX_PAYLOAD - 1024
#: About two hours, to outlast a receiver's outage of one hour.
_RETRY = RetryPolicy(max_retries=20, first_delay=SECOND, max_delay=15 * MINUTE)


class WebhookSink:
    """Sink that submits deliveries as runs.

    Only the store can be unavailable to it. The worker that sends a delivery notices a receiver's outage.
    """

    def __init__(self, webhook: Webhook, jobs: Jobs) -> None:
        self.name = f"webhook:{webhook.name}"
        self._webhook = webhook
        self._jobs = jobs
        # The ordering key delivers one at a time, in order; a retry holds the later deliveries back.
        self._policy = RunPolicy(retry=_RETRY, ordering_key=f"webhook:{webhook.name}")

    async def open(self, source: str) -> None: ...

    async def close(self) -> None: ...

    def demands(self, kind: str, tenant: str) -> bool:
        return self._webhook.may_want(kind, tenant)

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        wanted = [event for event in events if self._webhook.demands(event)]
        runs = [self._build_run(part) for part in _split(wanted)]
        if runs:
            await self._jobs.submit_many(runs)

    def _build_run(self, events: Sequence[Event]) -> NewRun:
        webhook = self._webhook
        body = b"[" + b",".join(event.body for event in events) + b"]"
        run = NewRun(
            id=self._jobs.new_run_id(self._policy.ordering_key or "", tenant=webhook.owner),
            task=WEBHOOK,
            payload=msgspec.json.encode(Delivery(webhook.name, msgspec.Raw(body))),
            queue=QUEUE,
            tenant=webhook.owner,
            policy=self._policy,
        )
        # The same events published again make the same delivery; a different range makes another one.
        return made_once(run, f"{self.name[:100]}:{events[0].id}:{events[-1].id}")


def _split(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    start = size = 0
    for number, event in enumerate(events):
        size += len(event.body) + 1
        if number - start == _MAX_EVENTS or size > _MAX_BYTES:
            yield events[start:number]
            start, size = number, len(event.body) + 1
    if start < len(events):
        yield events[start:]
