"""Three kinds of work that share workers: payouts (P1), promotions (P2), analyses (P3)."""

import asyncio
import random
from zoneinfo import ZoneInfo

import asyncpg

from examples.payouts import books
from mainspring import Context, Mainspring, Overlap, transaction

app = Mainspring()

CITIES = {"paris": "Europe/Paris", "new-york": "America/New_York", "tokyo": "Asia/Tokyo"}


async def transfer() -> None:
    """The bank takes a moment. One that hangs is stopped after a minute, and tried again."""
    await asyncio.sleep(0.5)


# P1: an attempt has a minute.


@app.task(queue="payouts", priority=1, preset="payouts", retries=3)
async def pay_out(driver: str, period: str, db: asyncpg.Connection = transaction()) -> None:
    """On PostgreSQL. The books and the outcome of this run are committed together: exactly once."""
    await books.pay(db, driver, period)
    await transfer()


@app.task(queue="payouts", priority=1, preset="payouts", retries=3)
async def pay_out_by_key(driver: str, period: str) -> None:
    """On other stores. The books know the payout by its key, and take it once however often it is tried."""
    await asyncio.to_thread(books.pay_by_key, driver, period)
    await transfer()


@app.task(queue="payouts", priority=1, preset="payouts", retries=3)
async def pay_city(context: Context, city: str, period: str = "") -> list[str]:
    """A payout for each driver. If this is tried again, the keys say which there are already."""
    store = app.settings().store
    week = period or f"{context.scheduled_for.astimezone(ZoneInfo(CITIES[city])):%G-W%V}"
    task = app.named("pay_out" if books.on_postgresql(store) else "pay_out_by_key")
    drivers = await books.drivers_of(store, city)
    runs = await app.submit_many(
        task.options(unique=f"payout {driver} {week}").prepare(driver, week) for driver in drivers
    )
    return [run.id for run in runs]


for city, timezone in CITIES.items():
    app.cron("0 0 9 * * MON", timezone=timezone, name=f"payouts-{city}")(pay_city.prepare(city))


# P2: five minutes.


@app.task(queue="promotions", priority=2, preset="payouts")
async def send_promotion(customer: int) -> None:
    await asyncio.sleep(0.01)


@app.cron("0 0 10 * * FRI", timezone="Europe/Paris")
@app.task(queue="promotions", priority=2, preset="payouts")
async def weekly_promotion(customers: int = 1_000) -> None:
    """A mail for each customer. However many they are, a hundred are on their way at a time."""
    await send_promotion.map(range(customers), at_a_time=100)


@app.every("30s", overlap=Overlap.SKIP, catch_up="none")
@app.task(queue="pricing", priority=2, timeout="30s")
async def recalculate_surge() -> dict[str, float]:
    """A price that is late is worth nothing: what was missed is not made up for."""
    return {city: round(random.uniform(1, 3), 1) for city in CITIES}


# P3: half an hour.


@app.cron("0 0 4 * * *", timezone="Europe/Paris")
@app.task(queue="analyses", priority=3, preset="payouts")
async def analyse_rides() -> None:
    await asyncio.sleep(0.01)
