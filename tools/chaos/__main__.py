"""``python -m tools.chaos``: try faults, print the table, exit with 1 if the judge found anything."""

import argparse
import asyncio
import sys
import time
import traceback
from pathlib import Path

import uvloop

from tools.chaos import report
from tools.chaos.catalogue import FAULTS
from tools.chaos.cluster import ROOT
from tools.chaos.ensembles import BROKERS
from tools.chaos.faults import COORDINATORS
from tools.chaos.run import Outcome, run

PAGE = ROOT / "docs/operate/failover.md"
BROKERS_PAGE = ROOT / "docs/concepts/brokers.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--faults", default="all", help=f"names with commas, or all: {', '.join(FAULTS)}")
    parser.add_argument("--repetitions", type=int, default=10, help="of each fault, on one cluster")
    parser.add_argument("--coordination", default="store", help=f"names with commas: {', '.join(COORDINATORS)}")
    parser.add_argument("--dispatch", default="", help=f"try brokers instead, with commas: {', '.join(BROKERS)}")
    parser.add_argument("--rate", type=int, default=2_000, help="runs that are submitted a second")
    parser.add_argument("--crons", type=int, default=200, help="recurring jobs that tick every second")
    parser.add_argument("--directory", type=Path, default=ROOT / ".chaos", help="for logs, histories and results")
    parser.add_argument("--keep", action="store_true", help="keep logs and histories also when nothing is wrong")
    parser.add_argument("--resume", action="store_true", help="leave out what results.json has already, and is sound")
    parser.add_argument(
        "--publish",
        action="store_true",
        help=f"write the table of all results into {PAGE.relative_to(ROOT)} or {BROKERS_PAGE.relative_to(ROOT)}",
    )
    arguments = parser.parse_args()
    names = list(FAULTS) if arguments.faults == "all" else arguments.faults.split(",")
    servers = (arguments.dispatch or arguments.coordination).split(",")
    possible = BROKERS if arguments.dispatch else COORDINATORS
    for what, unknown in (("fault", set(names) - set(FAULTS)), ("server", set(servers) - set(possible))):
        if unknown:
            parser.error(f"no such {what}: {', '.join(sorted(unknown))}")
    results = report.Results(arguments.directory / "results.json")
    size = {"repetitions": arguments.repetitions, "rate": arguments.rate, "crons": arguments.crons}
    done = [(one.fault, one.coordination) for one in results.of(**size) if one.judgement["sound"]]
    plan = [
        (name, server)
        for name in names
        for server in servers
        if _applies(name, server, named=arguments.faults != "all")
        if not (arguments.resume and (name, server) in done)
    ]
    broken = uvloop.run(_all(arguments, plan, results))
    outcomes = [outcome for outcome in results.of(**size) if outcome.coordination in possible]
    text = report.brokers_table(outcomes) if arguments.dispatch else report.table(outcomes)
    print(text)
    if arguments.publish:
        report.publish(BROKERS_PAGE if arguments.dispatch else PAGE, text)
    return 1 if broken or not all(outcome.judgement["sound"] for outcome in outcomes) else 0


def _applies(name: str, server: str, *, named: bool) -> bool:
    fault = FAULTS[name]()
    if why := fault.impossible():
        print(f"{name}: not tried: {why}", file=sys.stderr)
        return False
    wanted = not fault.variant and (server == "store" or fault.hits_schedulers or server in BROKERS)
    return server in fault.tried_with and (named or wanted)


async def _all(arguments: argparse.Namespace, plan: list[tuple[str, str]], results: report.Results) -> bool:
    """Whether some could not be tried."""
    broken = False
    judging: asyncio.Task[Outcome] | None = None
    for row, (name, server) in enumerate(plan):
        began = time.monotonic()

        def print_progress(repetition: int, row: int = row, began: float = began) -> None:
            name, server = plan[row]
            left = _seconds_left(plan[row:], results) - (time.monotonic() - began)
            said = f"{name} on {server} ({row + 1} of {len(plan)}): {repetition + 1} of {arguments.repetitions}"
            print(f"{time.strftime('%H:%M:%S')} {said}; about {max(left, 0) / 60:.0f} min left", file=sys.stderr)

        try:
            running = await run(
                FAULTS[name](),
                arguments.directory / f"{name}-{server}-{time.strftime('%Y%m%d-%H%M%S')}",
                repetitions=arguments.repetitions,
                coordination=server,
                rate=arguments.rate,
                crons=arguments.crons,
                keep=arguments.keep,
                progress=print_progress,
            )
        except Exception:
            # The others can be tried all the same.
            traceback.print_exc()
            broken = True
            continue
        broken |= await _judged(judging, results)
        judging = running
    return await _judged(judging, results) or broken


async def _judged(judging: "asyncio.Task[Outcome] | None", results: report.Results) -> bool:
    """Whether it could not be judged."""
    if judging is None:
        return False
    try:
        outcome = await judging
    except Exception:
        traceback.print_exc()
        return True
    results.add(outcome)
    wrong = "; ".join(f"{rule}: {what}" for rule, what in outcome.judgement["examples"][:10])
    took = f"{outcome.judgement['runs']:,} runs in {outcome.took:.0f} s"
    print(f"{outcome.fault} on {outcome.coordination}: {took}: {wrong or 'nothing wrong'}", file=sys.stderr, flush=True)
    return False


def _seconds_left(plan: list[tuple[str, str]], results: report.Results) -> float:
    """By how long each took the last time; the rest are as long as the others are on average."""
    usual = results.usual_seconds() or 120
    return sum(results.seconds(*one) or usual for one in plan)


if __name__ == "__main__":
    sys.exit(main())
