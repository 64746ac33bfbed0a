"""``python -m examples.payouts``: a worker is killed while it pays, and every driver is paid exactly once."""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from examples.payouts import books
from examples.payouts.application import CITIES, analyse_rides, app, pay_city, recalculate_surge, weekly_promotion
from examples.processes import Processes, kill, run, say
from mainspring import RunHandle

CITY = "paris"
#: A laptop's share of the slots in mainspring.toml.
SLOTS = ("payouts:10", "promotions:5", "pricing:5", "analyses:2")
WORKER = ("worker", "examples.payouts:app", *(word for slots in SLOTS for word in ("--queue", slots)))


async def main(drivers: int) -> bool:
    store = app.settings().store
    await books.open_books(store, CITY, drivers)
    # This process schedules. The work is done by two others.
    async with app.running(worker=False):
        with Processes(Path("payouts.log")) as processes:
            workers = {name: processes.start(*WORKER, "--name", name) for name in ("worker-1", "worker-2")}
            await show_paydays()
            period = f"{datetime.now(UTC):%G-W%V, at %H:%M:%S}"
            say(f"Nobody wants to wait for that: {CITY} is paid now, beside promotions, prices and analyses")
            others: list[RunHandle[Any]] = [
                await weekly_promotion.submit(200),
                await recalculate_surge.submit(),
                await analyse_rides.submit(),
            ]
            payday = await pay_city.submit(CITY, period)
            payouts = [app.handle(run_id) for run_id in await payday.result()]
            victim = await somebody_who_pays(payouts)
            kill(workers[victim])
            before = len(await books.payments(store, period))
            say(f"{victim} was killed while it paid; {before} payments are in the books")
            lease = app.settings().worker.lease / 1_000_000
            say(f"What it had in hand goes to the other one when its lease is over, in {lease:g} seconds")
            views = [await run.wait("2m") for run in (*others, *payouts)]
            payments = Counter(await books.payments(store, period))
            again = sum(view.attempt > 1 for view in views)
            twice = sum(count > 1 for count in payments.values())
            say(f"{drivers} drivers: {len(payments)} were paid, {twice} of them twice; {again} runs were tried again")
            return len(payments) == drivers and not twice and {view.state.value for view in views} == {"succeeded"}


async def show_paydays() -> None:
    for job in await app.declare():
        city = job.spec.name.removeprefix("payouts-")
        if city in CITIES and job.next_fire is not None:
            payday = datetime.fromtimestamp(job.next_fire / 1_000_000, ZoneInfo(CITIES[city]))
            say(f"  {job.spec.name}: {payday:%A, %d %B, %H:%M} in {CITIES[city]}")


async def somebody_who_pays(payouts: Sequence[RunHandle[Any]]) -> str:
    for payout in payouts:
        while not (view := await payout.view()).state.ended:
            if view.state.value == "running":
                return view.executor
            await asyncio.sleep(0.01)
    raise RuntimeError("all were paid before anybody could be killed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.payouts", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="fewer drivers, and a shorter lease")
    fast = parser.parse_args().fast
    if fast:
        os.environ.setdefault("MAINSPRING_WORKER_LEASE", "2s")
    run("payouts", main(drivers=100 if fast else 500))
