"""A scheduler and a worker embedded in another program."""

import multiprocessing
from pathlib import Path
from typing import Any

import django
import httpx2
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path as url_path
from fastapi import FastAPI
from litestar import Litestar, get

from mainspring import Mainspring
from tests.support.waiting import eventually


def application(path: Path) -> Mainspring:
    app = Mainspring(str(path / "embedded.db"))

    @app.task
    async def add(left: int, right: int) -> int:
        return left + right

    @app.task
    def double(number: int) -> int:
        return 2 * number

    return app


async def test_a_script_runs_its_own_tasks(tmp_path: Path) -> None:
    app = application(tmp_path)
    ticks: list[int] = []

    @app.every("1s")
    async def tick() -> None:
        ticks.append(1)

    async with app.running():
        assert await (await app.named("add").submit(left=1, right=2)).result("2m") == 3
        assert await (await app.named("double").submit(number=4)).result("2m") == 8
        await eventually(lambda: ticks)
    # The application can run again on the same store.
    async with app.running(scheduler=False):
        assert await (await app.named("add").submit(left=3, right=4)).result("2m") == 7


async def test_an_application_runs_in_the_lifespan_of_fastapi(tmp_path: Path) -> None:
    jobs = application(tmp_path)
    web = FastAPI(lifespan=lambda _: jobs.running())

    @web.get("/")
    async def submit(right: int) -> dict[str, int]:
        handle = await jobs.named("add").submit(left=1, right=right)
        return {"result": await handle.result("2m")}

    async with web.router.lifespan_context(web):
        transport = httpx2.ASGITransport(app=web)
        async with httpx2.AsyncClient(transport=transport, base_url="http://web") as client:
            assert (await client.get("/", params={"right": 5})).json() == {"result": 6}


async def test_an_application_runs_in_the_lifespan_of_litestar(tmp_path: Path) -> None:
    jobs = application(tmp_path)

    @get("/")
    async def submit() -> int:
        handle = await jobs.named("add").submit(left=20, right=1)
        result: int = await handle.result("2m")
        return result

    web: Any = Litestar([submit], lifespan=[lambda _: jobs.running()], logging_config=None)
    async with web.lifespan():
        transport = httpx2.ASGITransport(app=web)
        async with httpx2.AsyncClient(transport=transport, base_url="http://web") as client:
            assert (await client.get("/")).json() == 21


def _view(path: str, answers: "multiprocessing.SimpleQueue[str]") -> None:
    """Submit like a view of a sync framework, in a process forked after the application was imported."""
    answers.put(_jobs[path].named("add").sync.submit(left=1, right=1).id)


_jobs: dict[str, Mainspring] = {}


def test_sync_frameworks_submit_from_forked_processes(tmp_path: Path) -> None:
    with application(tmp_path) as jobs:
        _jobs[str(tmp_path)] = jobs
        jobs.named("add").sync.submit(left=0, right=0)
        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()
        children = [fork.Process(target=_view, args=(str(tmp_path), answers)) for _ in range(3)]
        for child in children:
            child.start()
        ids = {answers.get() for _ in children}
        for child in children:
            child.join()
        assert len(ids) == 3
        assert all(jobs.handle(run).sync.view().task == "add" for run in ids)


urlpatterns: list[object] = []


def test_django_submits_from_its_views(tmp_path: Path) -> None:
    with application(tmp_path) as jobs:

        def view(request: HttpRequest) -> JsonResponse:
            return JsonResponse({"run": jobs.named("add").sync.submit(left=1, right=int(request.GET["right"])).id})

        settings.configure(
            ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="-", DATABASES={}, LOGGING_CONFIG=None
        )
        django.setup()
        urlpatterns[:] = [url_path("submit", view)]
        run = Client().get("/submit", {"right": 2}).json()["run"]
        assert jobs.handle(run).sync.view().task == "add"
