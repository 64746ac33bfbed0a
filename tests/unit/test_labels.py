"""Worker labels, required labels and broadcasts."""

import pytest

from mainspring.config.loading import load
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.labels import MAX_LABELS, has_all, label_words, read_label, split_labels
from mainspring.core.model.explain.runs import RunSituation, explain
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.features.broadcasts.service import build_copies
from tests.support.builders import a_policy, a_run
from tests.support.views import a_run_view


def test_a_set_of_labels_has_one_canonical_form() -> None:
    words = label_words("labels", {"region": "eu", "gpu": "a100"})
    assert words == ("gpu=a100", "region=eu")
    assert split_labels(words) == {"gpu": "a100", "region": "eu"}


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"gpu": ""},
        {"a=b": "x"},
        {"a,b": "x"},
        {"gpu": "a,b"},
        {"gpu": "a b"},
        {"gpu": "ä"},
        {"gpu": "a\n"},
        {"-gpu": "x"},
        {"gpu": "x" * 64},
        {"gpu": 1},
        {f"n{number}": "x" for number in range(MAX_LABELS + 1)},
        ["gpu=a100"],
    ],
)
def test_an_invalid_label_is_rejected(labels: dict[str, str]) -> None:
    with pytest.raises(Invalid) as caught:
        label_words("requires", labels)
    assert caught.value.field == "requires"


@pytest.mark.parametrize("requires", [("b=1", "a=1"), ("a=1", "a=2"), ("a",), ("a=b=c",), ["a=1"], "a=1"])
def test_a_policy_accepts_only_labels_in_canonical_form(requires: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="requires"):
        RunPolicy(requires=requires).check()


def test_a_worker_needs_every_required_label() -> None:
    assert has_all((), ())
    assert has_all(("gpu=a100",), ())
    assert has_all(("gpu=a100", "region=eu"), ("region=eu",))
    assert not has_all(("gpu=a100",), ("gpu=a100", "region=eu"))
    assert not has_all(("gpu=a100",), ("gpu=h100",))


def test_a_label_is_parsed_from_the_command_line() -> None:
    assert read_label("--label", "gpu=a100") == ("gpu", "a100")
    for wrong in ("gpu", "=a100", "gpu=", "gpu=a=b"):
        with pytest.raises(Invalid, match="label"):
            read_label("--label", wrong)


def test_labels_are_read_from_the_settings(tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("MAINSPRING_WORKER_LABELS", "gpu=a100, region=eu")
    assert load({}).worker.labels == {"gpu": "a100", "region": "eu"}
    assert load({"worker.labels": {"gpu": "h100"}}).worker.labels == {"gpu": "h100"}
    monkeypatch.setenv("MAINSPRING_WORKER_LABELS", "gpu=a100,gpu=h100")
    with pytest.raises(Invalid, match="twice"):
        load({})


def a_worker_view(number: int, **fields: object) -> SessionView:
    usual: dict[str, object] = {"queues": ("default",), "tasks": ("greet",)}
    return SessionView(
        id=SessionId(number),
        kind="worker",
        name="w",
        version="",
        datacenter="",
        started_at=0,
        lease_until=0,
        **{**usual, **fields},  # type: ignore[arg-type]
    )


def test_a_broadcast_is_one_run_for_each_worker_that_can_take_it() -> None:
    run = a_run(queue="mail", policy=a_policy(requires=("gpu=a100",)))
    workers = [
        a_worker_view(1, labels=("gpu=a100",), queues=("default", "mail")),
        a_worker_view(2, labels=("gpu=a100", "region=eu")),
        a_worker_view(3),
        a_worker_view(4, labels=("gpu=a100",), tasks=("other",)),
        a_worker_view(5, labels=("gpu=a100",), draining=True),
    ]
    copies = build_copies(run, workers)
    assert [(copy.target, copy.queue) for copy in copies] == [(1, "mail"), (2, "default")]
    assert len({copy.id for copy in (*copies, run)}) == 3
    assert build_copies(run, workers) == copies


def test_a_broadcast_with_an_idempotency_key_is_rejected() -> None:
    run: NewRun = a_run(idempotency=Idempotency("k", b""))
    with pytest.raises(Invalid, match="broadcast"):
        build_copies(run, [])


def a_queued_run(requires: tuple[str, ...] = (), target: int | None = None) -> RunView:
    return a_run_view(policy=RunPolicy(requires=requires), target=None if target is None else SessionId(target))


def test_an_explanation_names_the_labels_that_no_worker_has() -> None:
    facts = RunSituation(now=0, workers=2, workers_knowing_task=2)
    explained = explain(a_queued_run(("gpu=a100", "region=eu")), facts)
    assert explained.reasons == ["no live worker has gpu=a100, region=eu"]
    assert "--label gpu=a100 --label region=eu" in explained.hints[0]
    explained = explain(
        a_queued_run(("gpu=a100",)), RunSituation(now=0, workers=2, workers_knowing_task=2, workers_with_labels=1)
    )
    assert "next in its queue" in explained.reasons[0]
    explained = explain(a_queued_run(("gpu=a100",), target=7), facts)
    assert "worker 7" in explained.reasons[0]
