"""Random workflows in virtual time, compared with a small model."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring import Mainspring
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import DependencyRule, EndedParent, decide
from mainspring.core.model.workflows.workflow import layers, newest, retried, to_retry
from mainspring.sdk.workflow import Step
from mainspring.testing import TestScheduler

SUCCEEDED, FAILED, SKIPPED = RunState.SUCCEEDED, RunState.FAILED, RunState.SKIPPED


class Planned:
    """A node of a random workflow: its parents by number, its rule, and whether it fails."""

    def __init__(self, parents: frozenset[int], rule: DependencyRule, fails: bool) -> None:
        self.parents = sorted(parents)
        self.rule = rule
        self.fails = fails

    def __repr__(self) -> str:
        return f"{self.parents} {self.rule} {'fails' if self.fails else ''}"


@st.composite
def workflows(draw: st.DrawFn) -> list[Planned]:
    nodes = []
    for number in range(draw(st.integers(1, 12))):
        parents = draw(st.frozensets(st.integers(0, number - 1), max_size=4)) if number else frozenset()
        nodes.append(Planned(parents, draw(st.sampled_from(list(DependencyRule))), draw(st.booleans())))
    return nodes


def model(nodes: list[Planned], healed: bool = False) -> list[RunState]:
    """Compute the final state of each node from the states of its parents."""
    states: list[RunState] = []
    for node in nodes:
        ends = [states[parent] for parent in node.parents]
        succeeded = ends.count(SUCCEEDED)
        ended = EndedParent(
            parents=len(ends), succeeded=succeeded, otherwise=len(ends) - succeeded, failed=ends.count(FAILED)
        )
        goes = not ends or decide(node.rule, ended) == "go"
        states.append((FAILED if node.fails and not healed else SUCCEEDED) if goes else SKIPPED)
    return states


async def play(nodes: list[Planned]) -> None:
    app = Mainspring("memory:")
    healed = False

    @app.task(retries=0)
    async def work(number: int) -> int:
        if nodes[number].fails and not healed:
            raise ValueError
        return number

    async with TestScheduler(app) as s:
        flow = app.workflow("random")
        steps: list[Step[int]] = []
        for number, node in enumerate(nodes):
            after = [steps[parent] for parent in node.parents]
            steps.append(flow.add(work.prepare(number), after=after, when=node.rule.value, name=str(number)))
        await flow.submit()
        await s.run_until_idle()
        found = newest(s.runs(work))
        assert [found[str(number)].state for number in range(len(nodes))] == model(nodes)
        if not any(node.fails for node in nodes) or FAILED not in model(nodes):
            return
        healed = True
        chosen = to_retry(found)
        payloads = {name: b'{"number":%d}' % int(name) for name in chosen}
        runtime = await app.runtime()
        for _ in range(2):
            # The second request has no effect.
            await runtime.jobs.submit_whole(retried(found, payloads, chosen, ""))
        await s.run_until_idle()
        after_it = newest(s.runs(work))
        assert all(run.state.ended for run in after_it.values())
        assert FAILED not in {run.state for run in after_it.values()}
        for name, run in found.items():
            assert (after_it[name].id == run.id) == (name not in chosen)
            assert run.state is not SUCCEEDED or name not in chosen


@settings(max_examples=6, deadline=None)
@given(workflows())
def test_a_random_workflow_ends_as_the_model_predicts(nodes: list[Planned]) -> None:
    asyncio.run(play(nodes))


@given(workflows())
def test_layers_put_parents_above_their_children(nodes: list[Planned]) -> None:
    after = {str(number): [str(parent) for parent in node.parents] for number, node in enumerate(nodes)}
    found = layers(after)
    place = {name: number for number, layer in enumerate(found) for name in layer}
    assert sorted(place) == sorted(after)
    for name, parents in after.items():
        assert place[name] == 1 + max((place[parent] for parent in parents), default=-1)


def test_a_chain_of_ten_thousand_nodes_has_ten_thousand_layers() -> None:
    after = {str(number): [str(number + 1)] if number < 9_999 else [] for number in range(10_000)}
    assert len(layers(after)) == 10_000
