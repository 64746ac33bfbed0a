"""Workflows from the command line: submit from a file, show, cancel, retry."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.features.runs.commands import _merge_polls
from mainspring.features.workflows.commands import draw_layers
from mainspring.http.schemas.runs import AttemptOut
from mainspring.http.schemas.workflows import NodeOut
from tests.support.command_line import Site, running_site

FLOW = """
name: nightly
nodes:
  first: {task: send, payload: {user_id: 1}}
  bad: {task: broken, payload: {number: 1}, maxRetries: 0, after: [first]}
  last: {task: send, payload: {user_id: 2}, after: [bad]}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as made:
        yield made


def test_a_workflow_is_submitted_shown_retried_and_cancelled(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(FLOW)
    where = ("--store", site.store)
    workflow = site.run("workflows", "submit", "-f", str(file), "--quiet", *where).out.strip()
    last = site.run("workflows", "show", workflow, *where, "--json").json["nodes"][2]["runId"]
    after = site.call(
        "jobs", "submit", "send", "--arg", "user_id=3", "--depends-on", last, "--when", "all-done", *where
    )
    assert after.code == 0, after
    site.run(
        "jobs", "submit", "send", "--arg", "user_id=4", "--depends-on", last, "--when", "all-done", "--wait", *where
    )
    shown = site.run("workflows", "show", workflow, *where).out.splitlines()
    assert shown[0] == "nightly  failed  1 failed, 1 skipped, 1 succeeded"
    assert shown[1:4] == ["  1 │ ✓ first", "  2 │ ✗ bad", "  3 │ - last"]
    assert shown[4].startswith("bad failed (error): mainspring runs show ")
    again = site.run("workflows", "retry", workflow, "--from", "bad", *where)
    assert again.out == "2 nodes retried: bad, last\n"
    cancelled = site.call("workflows", "cancel", workflow, *where)
    assert cancelled.code in (0, 1, 5), cancelled


def test_a_fan_out_is_shown_with_the_times_of_the_whole(site: Site) -> None:
    where = ("--store", site.store)
    plan = '{"task": "send", "items": [{"user_id": 1}, {"user_id": 2}]}'
    root = site.run("jobs", "submit", "fan_out", "--payload", plan, "--wait", "--quiet", *where).out.split()[0]
    lines = site.run("runs", "show", root, *where).out.splitlines()
    fields = {line.split()[0] for line in lines if line[:1].isalpha()}
    assert {"submitted", "ended", "took"} <= fields
    assert not {"due", "started"} & fields
    assert sum("waiting for members" in line for line in lines) <= 1


def test_only_the_last_attempt_released_for_a_reason_is_shown() -> None:
    def attempt(outcome: str, number: int, reason: str = "waits") -> AttemptOut:
        return AttemptOut(
            attempt_number=number,
            outcome=outcome,
            start_time="2026-01-01T00:00:00Z",
            end_time="2026-01-01T00:00:01Z",
            reason=reason,
        )

    look, loss = attempt("released", 1), attempt("lost", 1)
    again, other = attempt("released", 2), attempt("released", 2, "the worker left")
    assert _merge_polls([look, look, loss, loss, look, again, other]) == [look, loss, loss, again, other]
    assert _merge_polls([]) == []


def test_an_error_in_a_workflow_file_names_its_field(site: Site, tmp_path: Path) -> None:
    where = ("--store", site.store)
    circle = "name: x\nnodes: {a: {task: send, after: [b]}, b: {task: send, after: [a]}}"
    result = site.call("workflows", "submit", "-f", "-", *where, stdin=circle)
    assert result.code == 2
    assert "nodes.a.after: goes round in a circle: a → b → a" in result.err
    assert site.call("workflows", "submit", "-f", str(tmp_path / "none.yaml"), *where).code == 2
    assert site.call("workflows", "submit", "-f", "-", *where, stdin="- a\n- b").code == 2


def test_a_wide_layer_fits_a_terminal() -> None:
    def node(name: str, status: str, after: tuple[str, ...] = ()) -> NodeOut:
        return NodeOut(name=name, run_id="0", status=status, task="t", queue="q", attempt_number=0, after=after)

    nodes = [node("top", "succeeded")]
    nodes += [node(f"part-{number}", "queued" if number % 2 else "succeeded", ("top",)) for number in range(500)]
    nodes += [node("x" * 200, "blocked", tuple(one.name for one in nodes[1:]))]
    lines = list(draw_layers(nodes, 80))
    assert all(line.cell_len <= 80 for line in lines)
    assert lines[0].plain == "  1 │ ✓ top"
    assert len(lines) == 7
    assert "more: " in lines[5].plain
