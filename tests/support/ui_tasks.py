"""The tasks behind the dashboard in tests and screenshots: a small shop, and texts that try to break out."""

import asyncio
import random
from typing import Literal

from mainspring import Context, Mainspring, RetryPolicy

app = Mainspring()
#: How long one page of an export takes: a run that is always in progress, but keeps no core busy.
PAGE_SECONDS = 0.5
_random = random.Random(7)

#: Markup, quotes, control characters, and a character that reverses the direction of the text.
NASTY = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "'\"&{{7*7}}\x07\x1b[31m\u202egnp"
)


def _quick(retries: int) -> RetryPolicy:
    return RetryPolicy(max_retries=retries, first_delay="200ms", max_delay="1s")


@app.task(queue="mail", retry=_quick(2))
async def send_welcome(context: Context, user_id: int) -> dict[str, int]:
    context.log.info("\x1b[36mrendering\x1b[0m the welcome of user %s", user_id)
    await asyncio.sleep(_random.random() * 0.1)
    if user_id % 7 == 0 and context.attempt == 1:
        raise ConnectionError("the mail server refused the connection")
    context.log.info("\x1b[32;1msent\x1b[0m in one part")
    return {"user_id": user_id}


@app.task(queue="reports", priority=8, retries=9, timeout="2m")
async def many_arguments(
    count: int, title: str, color: Literal["red", "blue"] = "red", loud: bool = False, sizes: list[int] | None = None
) -> None:
    """Every kind of argument."""


@app.task(queue="payments", retry=_quick(1))
async def charge_card(context: Context, order: int) -> None:
    context.log.info("charging order %s", order)
    raise PermissionError("card declined: insufficient funds")


@app.task(queue="reports")
async def export_orders(context: Context, pages: int = 100) -> dict[str, int]:
    for page in range(pages):
        context.progress(page, pages, f"page {page} of {pages}")
        context.log.info("page %s: \x1b[33m%s orders\x1b[0m", page, _random.randint(10, 99))
        await asyncio.sleep(PAGE_SECONDS)
    return {"pages": pages}


@app.task(queue="payments", retry=_quick(5))
async def settle_day(context: Context, fails: list[str]) -> None:
    """Each attempt fails with the next error of the list; the one after the last succeeds."""
    if context.attempt <= len(fails):
        raise RuntimeError(fails[context.attempt - 1])


@app.task(queue="reports", retries=0)
async def print_nothing(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(queue="reports", retries=0)
async def step(seconds: float = 0.0, fails: str = "") -> dict[str, float]:
    """A node of a workflow."""
    await asyncio.sleep(seconds)
    if fails:
        raise RuntimeError(fails)
    return {"seconds": seconds}


@app.task(queue="default", retries=0)
async def nasty(context: Context, text: str) -> dict[str, str]:
    context.log.info("%s", text)
    raise ValueError(text)


@app.cron("*/2 * * * * *")
async def sync_inventory() -> str:
    await asyncio.sleep(_random.random() * 0.2)
    if _random.random() < 0.2:
        raise TimeoutError("the warehouse did not answer")
    return "ok"


@app.cron("0 30 9 * * MON", timezone="Europe/Paris")
async def weekly_report() -> None: ...


@app.cron("0 0 3 * * *", timezone="America/New_York")
async def vacuum_database() -> None: ...
