"""The tasks that a worker offers: built-in ones and those of the application."""

from mainspring import Mainspring
from mainspring.config.sections.tasks import TasksSection
from mainspring.config.settings import Settings
from mainspring.config.tasks import WorkerTasks
from mainspring.core.worker.handler import AsyncHandler


def test_a_worker_offers_built_in_tasks_and_tasks_of_the_application() -> None:
    app = Mainspring("memory:")

    @app.task(queue="mail")
    async def send() -> None: ...

    offer = WorkerTasks(Settings(), app)
    assert set(offer.handlers()) == {"send", "http", "fan_out", "fan_in"}
    assert set(offer.queues()) == {"mail"}


def test_a_task_of_the_application_overrides_a_built_in_one() -> None:
    app = Mainspring("memory:")

    @app.task(name="http")
    async def mine() -> None: ...

    handler = WorkerTasks(Settings(), app).handlers()["http"]
    assert isinstance(handler, AsyncHandler)
    assert not handler.harmless


def test_a_worker_without_an_application_offers_built_in_tasks_on_queue_default() -> None:
    offer = WorkerTasks(Settings(tasks=TasksSection(scripts="/srv/scripts")), None)
    assert set(offer.handlers()) == {"http", "shell"}
    assert set(offer.queues()) == {"default"}


def test_a_worker_of_an_application_with_scripts_also_serves_queue_default() -> None:
    app = Mainspring("memory:", scripts="/srv/scripts")

    @app.task(queue="mail")
    async def send() -> None: ...

    settings = app.settings()
    assert settings.tasks.scripts == "/srv/scripts"
    assert app.settings({"tasks.scripts": "/other"}).tasks.scripts == "/other"
    offer = WorkerTasks(settings, app)
    assert set(offer.handlers()) >= {"send", "shell"}
    assert set(offer.queues()) == {"mail", "default"}
