"""What a worker offers in all: the built-in tasks beside the application's."""

from mainspring import Mainspring
from mainspring.bootstrap.tasks import Offer
from mainspring.sections import TasksSection
from mainspring.settings import Settings
from mainspring.worker.handler import AsyncHandler


def test_the_built_in_tasks_stand_beside_the_applications() -> None:
    app = Mainspring("memory:")

    @app.task(queue="mail")
    async def send() -> None: ...

    offer = Offer(Settings(), app)
    assert set(offer.handlers()) == {"send", "http", "fan_out", "fan_in"}
    assert set(offer.queues()) == {"mail"}


def test_a_task_of_the_application_wins() -> None:
    app = Mainspring("memory:")

    @app.task(name="http")
    async def mine() -> None: ...

    handler = Offer(Settings(), app).handlers()["http"]
    assert isinstance(handler, AsyncHandler)
    assert not handler.harmless


def test_without_an_application_there_are_the_built_in_ones_on_the_queue_default() -> None:
    offer = Offer(Settings(tasks=TasksSection(scripts="/srv/scripts")), None)
    assert set(offer.handlers()) == {"http", "shell"}
    assert set(offer.queues()) == {"default"}
