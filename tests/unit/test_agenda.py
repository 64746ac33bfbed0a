"""The scheduler's agenda holds each mark and fire once, and drops outdated ones."""

import msgspec

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant
from mainspring.core.model.schedules.job import Fire
from mainspring.core.scheduler.agenda import Agenda
from tests.support.builders import a_fire, a_stored_job
from tests.support.clock import START


def a_planned_fire(at: Instant) -> Fire:
    return a_fire(a_stored_job(next_fire=at), next_fire=at + SECOND)


def with_rev(fire: Fire, rev: int, at: Instant) -> Fire:
    return msgspec.structs.replace(fire, job=msgspec.structs.replace(fire.job, rev=rev, next_fire=at))


def test_a_mark_that_is_loaded_again_is_held_once() -> None:
    agenda = Agenda()
    for _ in range(3):
        agenda.mark(START + SECOND, START)
        agenda.mark(START + SECOND - 1, START)
    assert len(agenda) == 1
    assert agenda.take_due(START + SECOND) == ([START + SECOND], [])
    agenda.mark(START + SECOND, START + SECOND)
    assert agenda.take_due(START + SECOND) == ([START + SECOND], [])


def test_a_fire_that_is_planned_twice_is_returned_once() -> None:
    agenda = Agenda()
    fire = a_planned_fire(START + SECOND)
    agenda.plan(fire, START)
    agenda.plan(fire, START)
    assert agenda.knows(fire.job.id, fire.job.rev)
    assert agenda.take_due(START + 2 * SECOND) == ([], [fire])
    assert not agenda.knows(fire.job.id, fire.job.rev)


def test_a_newer_revision_of_a_job_replaces_its_older_fire() -> None:
    agenda = Agenda()
    fire = a_planned_fire(START + SECOND)
    newer = with_rev(fire, fire.job.rev + 1, START + 500 * MILLISECOND)
    agenda.plan(fire, START)
    agenda.plan(newer, START)
    agenda.plan(fire, START)
    assert agenda.take_due(START + 2 * SECOND) == ([], [newer])


def test_forgetting_a_job_drops_its_planned_fire() -> None:
    agenda = Agenda()
    fire = a_planned_fire(START + SECOND)
    agenda.plan(fire, START)
    agenda.forget(fire.job.id)
    assert agenda.take_due(START + 2 * SECOND) == ([], [])


def test_the_agenda_returns_the_next_due_time_and_can_be_cleared() -> None:
    agenda = Agenda()
    assert (agenda.next_due(), len(agenda)) == (None, 0)
    agenda.mark(START + 100 * MILLISECOND, START)
    assert agenda.next_due() == START + 100 * MILLISECOND
    agenda.clear()
    assert (agenda.next_due(), len(agenda)) == (None, 0)
    assert agenda.take_due(START + SECOND) == ([], [])
