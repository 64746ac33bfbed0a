"""Dashboard page of alerts: open problems, channels, and the runs that deliver messages."""

import asyncio
from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.core.model.alerts.alert_messages import QUEUE
from mainspring.features.alerts.operations import show_notifications, try_channel
from mainspring.features.alerts.schemas import NotificationsOut
from mainspring.web.page import ActionReply, Pages, Reply, Visit

notifications = Pages()

_RUNS = 10


@notifications.page("GET", "/notifications", permission=Permission.ADMINISTER_ALL)
async def show_notifications_page(visit: Visit[Any]) -> Reply:
    listed, runs, counts = await asyncio.gather(
        visit.ask(show_notifications),
        visit.ask("list_runs", query={"queue": QUEUE, "limit": _RUNS}),
        visit.ask("count_runs"),
    )
    failed = counts.counts.get("failed", 0)
    found: NotificationsOut = listed
    return visit.show(
        "notifications/page.html",
        found=found,
        runs=runs.items,
        queue=QUEUE,
        failed=failed,
        failed_more=failed >= counts.at_most,
    )


@notifications.page("POST", "/notifications/channels/{name}/test", permission=Permission.ADMINISTER_ALL)
async def do_test(visit: Visit[Any]) -> Reply:
    owner = visit.form.get("owner", "").strip()
    await visit.ask(try_channel, path=visit.path, body={"owner": owner} if owner else {})
    return ActionReply(words="Test message submitted. Its run shows whether it arrived.", to="notifications")
