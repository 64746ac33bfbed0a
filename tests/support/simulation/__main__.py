"""Replay seeds: ``python -m tests.support.simulation 17`` prints violations, ``--trace`` the whole history."""

import argparse
import sys

from mainspring.core.model.base.instant import SECOND
from tests.support.simulation.history import History, RunChange
from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import Scenario, scenario_of
from tests.support.simulation.world import simulate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--trace", action="store_true", help="tell every step")
    parser.add_argument("--fingerprint", action="store_true", help="tell only the fingerprint of each trace")
    arguments = parser.parse_args()
    failed = False
    for seed in arguments.seeds:
        scenario = scenario_of(seed)
        history = simulate(scenario)
        if arguments.fingerprint:
            _say(f"{seed} {history.fingerprint()}")
            continue
        if arguments.trace:
            _tell(scenario, history)
        found = violations(history)
        failed |= bool(found)
        _say(f"seed {seed}: {len(found)} violations in {len(history.steps)} steps and {len(history.calls)} calls")
        for sentence in found:
            _say(f"  {sentence}")
    sys.exit(failed)


def _tell(scenario: Scenario, history: History) -> None:
    _say(str(scenario))
    lines: list[tuple[float, str]] = [(at / SECOND, f"--- {what}") for at, what in history.chaos]

    def since_start(at: int | None) -> float:
        return -1 if at is None else (at - scenario.start) / SECOND

    for step in history.steps:
        at = since_start(step.at)
        lines.append((at, f"{step.process} {step.operation}, sent {since_start(step.sent):.3f}"))
        lines += [(at, f"    {_move(change)}, due {since_start(change.after.due):.3f}") for change in step.runs]
        for change in step.jobs:
            job = change.after
            lines.append((at, f"    job {job.id}: {job.state.value}, next {since_start(job.next_fire):.3f}"))
        for tick in step.ticks:
            scheduled = since_start(tick.scheduled_at)
            lines.append((at, f"    tick {tick.job_id} {scheduled:.3f}: {tick.decision} {tick.reason}"))
        for asked, answer in step.completions:
            what = f"{asked.outcome.value} → {asked.state.value}: {answer.value}"
            lines.append((at, f"    complete {asked.run} under {asked.fence & 0xFFFFFF}: {what}"))
    for call in history.calls:
        where = f"{call.process}: run {call.run} under {call.fence & 0xFFFFFF}"
        lines.append((since_start(call.started), f"    {where} begins"))
        if call.ended is not None:
            lines.append((since_start(call.ended), f"    {where} {call.how}"))
    for moment, line in sorted(lines, key=lambda entry: entry[0]):
        _say(f"{moment:10.6f} {line}")


def _move(change: RunChange) -> str:
    run, before = change.after, change.before
    came_from = "new" if before is None else before.state.value
    asked = " asked to stop" if run.cancel_at is not None else ""
    counts = f"attempt {run.attempt}, lost {run.lost}, fence {run.fence & 0xFFFFFF}"
    return f"run {run.id}: {came_from} → {run.state.value}{asked} {run.reason} ({counts})"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
