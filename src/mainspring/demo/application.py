"""The demo application: crons, a stream of jobs, failures, retries, slow and busy tasks, a workflow, a script."""

import asyncio
import random
from pathlib import Path

from mainspring import Context, Mainspring, Overlap, RetryPolicy

app = Mainspring(scripts=Path(__file__).with_name("scripts"))
_random = random.Random()


@app.task(queue="mail", retries=5, retry=RetryPolicy(max_retries=5, first_delay="500ms", max_delay="5s"))
async def send_welcome(context: Context, user_id: int) -> str:
    """Send a welcome mail; fails now and then, as mail servers do."""
    if _random.random() < 0.2:
        raise ConnectionError(f"the mail server hung up (attempt {context.attempt})")
    return f"welcome, user {user_id}"


@app.task
async def email_send(context: Context, user_id: int, body: str) -> str:
    """Log the mail that it would send."""
    context.log.info("mail to user %s: %s", user_id, body)
    return f"sent to user {user_id}"


@app.task(queue="reports", timeout="5s")
def crunch(numbers: int) -> int:
    """Run as a sync function, in a child process that can be killed."""
    return sum(number * number for number in range(numbers))


@app.task(queue="reports", retries=0)
async def hopeless() -> None:
    """Fail always, and end as a dead letter."""
    raise ValueError("this one never works")


@app.task(queue="reports")
async def export_orders(context: Context, pages: int) -> int:
    """Report progress and log in color."""
    orders = 0
    for page in range(1, pages + 1):
        found = _random.randint(10, 99)
        orders += found
        context.progress(page, pages, f"page {page} of {pages}")
        context.log.info("page %s: \x1b[32m%s orders\x1b[0m", page, found)
        # Plain asyncio, as in a user's handler.
        await asyncio.sleep(0.5)  # noqa: TID251
    return orders


@app.task(queue="reports")
async def check_orders(context: Context, what: str) -> str:
    context.log.info("\x1b[33mchecked\x1b[0m the %s", what)
    return what


@app.task(queue="reports")
async def publish_orders(context: Context) -> int:
    """Publish after the tasks that check, as the workflow defines."""
    checked = (await context.parents()).results
    context.log.info("\x1b[1mpublished\x1b[0m, checked: %s", ", ".join(checked))
    return len(checked)


orders = app.workflow("orders")
_exported = orders.add(export_orders.prepare(10))
_checked = [orders.add(check_orders.prepare(what), name=what, after=[_exported]) for what in ("prices", "stock")]
orders.add(publish_orders.prepare(), after=_checked)
orders.cron("*/30 * * * * *", overlap=Overlap.SKIP)


@app.every("2s")
async def sign_ups() -> None:
    """Submit a mail for each of a stream of users now, and another one shortly after. Few enough to read the log."""
    for _ in range(_random.randint(1, 3)):
        user = _random.randint(1, 1_000_000)
        await send_welcome.submit(user)
        await send_welcome.options(delay="3s", priority=7).submit(user)


@app.cron("*/5 * * * * *")
async def five_seconds() -> None:
    """Run every five seconds: a cron with seconds."""
    await crunch.submit(_random.randint(10_000, 200_000))


@app.cron("*/20 * * * * *", timezone="Europe/Paris")
async def now_and_then() -> None:
    await hopeless.submit()


@app.cron("H * * * *")
async def hourly_report() -> None:
    """Run once an hour. ``H`` stands for a minute of its own, so that not everything happens at :00."""
