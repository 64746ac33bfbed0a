"""Notification operations: show channels, rules and open problems, and test a channel."""

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.alerts.alert_messages import Alert
from mainspring.core.model.alerts.channels import Channel
from mainspring.core.model.alerts.notification_rules import AlertRule
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import format_duration, isoformat
from mainspring.features.alerts.problems import Problem as OpenProblem
from mainspring.features.alerts.problems import decode_open_problems
from mainspring.features.alerts.schemas import (
    ChannelOut,
    ChannelTestIn,
    ChannelTestOut,
    NotificationsOut,
    ProblemOut,
    RuleOut,
)
from mainspring.features.alerts.service import build_message_run
from mainspring.features.alerts.target_alerts import count_pending
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem

notifications = Resource("Notifications", "Alert channels, alert rules and open problems.")

#: Open problems listed; the total is counted separately.
_MAX_LISTED = 200


@notifications.operation(
    "GET", "/v1/notifications", permission=Permission.ADMINISTER_ALL, answers={200: NotificationsOut}
)
async def show_notifications(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get channels, rules and open problems.

    Channels and rules are those in the settings of the process that answers. Each message is a run of the task
    `event_notification` in the queue `notifications`.
    """
    kept = await api.store.notification_rows()
    waiting, problems = count_pending(kept.rows), decode_open_problems(kept.rows)
    rules = api.notifications
    return Answer(
        200,
        NotificationsOut(
            channels=[_channel_out(channel, waiting) for channel in rules.channels.values()],
            rules=[_rule_out(rule) for rule in rules.rules],
            problems=[_problem_out(problem) for problem in problems[:_MAX_LISTED]],
            problem_count=len(problems),
        ),
    )


@notifications.operation(
    "POST",
    "/v1/notifications/channels/{name}/test",
    permission=Permission.ADMINISTER_ALL,
    body=ChannelTestIn,
    body_optional=True,
    answers={201: ChannelTestOut, 404: Problem},
)
async def try_channel(api: Api, call: Call[ChannelTestIn, Empty]) -> Answer:
    """Send a test message to a channel.

    The outcome of the run shows whether the message arrived; it is not retried. 404: there is no such channel.
    """
    channel = api.notifications.channels.get(call.path["name"])
    if channel is None:
        raise ObjectNotFound
    target = channel.name
    if channel.writes_to_owners:
        address = channel.find_owner_address(call.body.owner)
        if not address:
            raise Invalid(
                "owner", "is not an address that this channel may write to", f"in {', '.join(channel.domains)}"
            )
        target = f"{channel.name} {address}"
    elif call.body.owner:
        raise Invalid("owner", "this channel does not address owners", "leave it out")
    alert = Alert(test=True, url=api.notifications.url)
    run = build_message_run(api.jobs, api.notifications, target, alert)
    made = await api.jobs.submit(msgspec.structs.replace(run, author=call.principal.name))
    return Answer(201, ChannelTestOut(run_id=made.id))


def _channel_out(channel: Channel, waiting: dict[str, int]) -> ChannelOut:
    quiet = channel.quiet
    return ChannelOut(
        name=channel.name,
        kind=channel.kind.value,
        tenant=channel.tenant,
        group=format_duration(channel.group),
        rate_per_hour=channel.rate,
        to=list(channel.to),
        quiet_from=None if quiet is None else _format_clock(quiet.start),
        quiet_until=None if quiet is None else _format_clock(quiet.end),
        quiet_zone=None if quiet is None else quiet.zone,
        waiting=sum(count for target, count in waiting.items() if target.partition(" ")[0] == channel.name),
    )


def _format_clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _rule_out(rule: AlertRule) -> RuleOut:
    return RuleOut(
        name=rule.name,
        on=sorted(rule.on),
        to=rule.to,
        tasks=list(rule.tasks),
        queues=list(rule.queues),
        jobs=list(rule.jobs),
        tags=list(rule.tags),
        tenant=rule.tenant,
        urgent=rule.urgent,
    )


def _problem_out(problem: OpenProblem) -> ProblemOut:
    return ProblemOut(
        problem_id=problem.id,
        state=problem.stage.value,
        tenant=problem.tenant,
        name=problem.name,
        task=problem.task,
        queue=problem.queue,
        owner=problem.owner,
        run_id=problem.run or None,
        job_id=problem.job or None,
        error=problem.error,
        count=problem.count,
        since=isoformat(problem.since),
        last_at=isoformat(problem.last),
        notified=sorted(target for target, sent in problem.alerts.items() if sent.stages),
    )
