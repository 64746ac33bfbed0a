"""HTTP operations on the policies of queues."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.limits.queues import MAX_CONCURRENCY, MAX_SHARE, NO_POLICY, QueuePolicy, parse_budget
from mainspring.core.model.runs.names import check_queue
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.wakeups import queue_topic
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Request, Text, Wire, build_pattern

policies = Resource(
    "Queue policies",
    "How many runs of a queue are active at once, how fast its retries start, and the order of its runs.",
)

Rate: TypeAlias = Annotated[
    str,
    Meta(
        pattern=build_pattern(r"^[0-9]{1,9}/[0-9a-z. ]+$", "is not a rate", "for example 100/m or 600/5m"),
        max_length=40,
        examples=["100/m"],
    ),
]


class PolicyIn(Request):
    """The whole policy: a limit that you leave out is removed."""

    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY)] | None = None
    """At most so many active runs of the queue at once, over all workers."""
    retries: Rate | None = None
    """At most so many retries in a period, such as `10/s` or `600/5m`. Further retries start later."""
    fair: bool = False
    """Tenants take turns."""
    shares: dict[str, Annotated[int, Meta(ge=1, le=MAX_SHARE)]] = {}
    """How many turns a tenant gets for each turn of the others."""
    why: Text = ""


class PolicyOut(Wire):
    name: str
    concurrency: int | None = None
    retries: str | None = None
    fair: bool = False
    shares: dict[str, int] = {}


@policies.operation("GET", "/v1/queues/{name}", permission=Permission.READ, answers={200: PolicyOut})
async def get_queue_policy(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get the policy of a queue.

    Returns the defaults if no policy was set. A key that is bound to a tenant sees only the share of that tenant.
    """
    name = check_queue("name", call.path["name"])
    policy = (await api.store.queue_policies()).get(name, NO_POLICY)
    tenant = call.principal.tenant
    shares = {name: share for name, share in policy.shares.items() if tenant in (None, name)}
    return Answer(200, _policy_out(name, policy, shares))


@policies.operation(
    "PUT",
    "/v1/queues/{name}",
    permission=Permission.ADMINISTER_ALL,
    body=PolicyIn,
    answers={200: PolicyOut},
    example={"concurrency": 50, "retries": "10/s", "fair": True},
)
async def put_queue_policy(api: Api, call: Call[PolicyIn, Empty]) -> Answer:
    """Set the policy of a queue.

    Sets how many runs are active at once, how fast retries start, and the order of runs. Replaces the whole policy:
    fields that you leave out are reset.
    """
    name = check_queue("name", call.path["name"])
    said = call.body
    policy = QueuePolicy(
        concurrency=said.concurrency,
        retries=None if said.retries is None else parse_budget(said.retries),
        fair=said.fair,
        shares=said.shares,
    )
    policy.check()
    await api.store.put_queue_policy(name, policy, Author(call.principal.name, None, said.why))
    api.wakeups.notify([queue_topic(name)])
    return Answer(200, _policy_out(name, policy, policy.shares))


def _policy_out(name: str, policy: QueuePolicy, shares: dict[str, int]) -> PolicyOut:
    return PolicyOut(
        name=name,
        concurrency=policy.concurrency,
        retries=None if policy.retries is None else str(policy.retries),
        fair=policy.fair,
        shares=shares,
    )
