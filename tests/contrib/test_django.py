"""Mainspring inside a Django project: the project of the page, with real processes and databases."""

import json
import re
import shutil
from pathlib import Path

import httpx2
import pytest

from tests.support.command_line import terminate, wait_for_http
from tests.support.django_project import PAGE, DjangoProject
from tests.support.processes import START_SECONDS, free_port
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.slow

_DATABASE = "postgresql://db.example/shop"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DjangoProject:
    """The project with an SQLite database, before its first migration."""
    project = DjangoProject(tmp_path_factory.mktemp("django"))
    project.make()
    return project


@pytest.fixture
def project(made: DjangoProject, tmp_path: Path) -> DjangoProject:
    """A copy for one test."""
    project = DjangoProject(tmp_path / "project")
    shutil.copytree(made.folder, project.folder)
    project.blocks = made.blocks
    return project


@pytest.fixture
def postgres_project(project: DjangoProject, postgres_database: str) -> DjangoProject:
    """A copy on PostgreSQL, with its tables."""
    project.use_postgres(postgres_database)
    project.manage("migrate")
    return project


def shape(answer: str) -> object:
    """An answer without what is another one each time."""
    found = json.loads(answer)
    if "run" in found:
        assert re.fullmatch("[0-9a-f]{32}", found["run"])
        found["run"] = "id"
    return found


def test_the_page_works_from_the_first_command_to_the_last_answer(project: DjangoProject) -> None:
    project.environment["MAINSPRING_PORT"] = str(port := free_port())
    project.manage("migrate")
    up = project.start("manage.py", "mainspring", "up")
    web = f"http://127.0.0.1:{(web_port := free_port())}"
    server = project.start("manage.py", "runserver", "--noreload", str(web_port))
    try:
        wait_for_http(f"http://127.0.0.1:{port}", up, project.log)
        wait_until(lambda: _answers(web), project.log.read_text, deadline=START_SECONDS)
        ordered, shown = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        answer = httpx2.post(f"{web}/orders", data={"customer": "ada@example.com"}, timeout=DEADLINE_SECONDS).text
        assert shape(answer) == shape(ordered)
        wait_until(
            lambda: shape(httpx2.get(f"{web}/orders/1", timeout=DEADLINE_SECONDS).text) == shape(shown),
            project.log.read_text,
        )
        assert "send_receipt" in project.manage("mainspring", "runs", "list", "--task", "send_receipt")
        assert project.manage("mainspring", "runs", "show", json.loads(answer)["run"])
        assert "count_orders" in project.manage("mainspring", "jobs", "list")
    finally:
        server.terminate()
        assert terminate(up) == 0
        server.wait()
    assert (project.folder / "mainspring.db").exists()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=DEADLINE_SECONDS).status_code == 404
    except httpx2.TransportError:
        return False


def test_the_tests_of_the_page_pass_on_sqlite(project: DjangoProject) -> None:
    output = project.manage("test")
    assert "Ran 2 tests" in output
    assert output.rstrip().splitlines()[-2] == "OK"
    assert not (project.folder / "mainspring.db").exists()


@pytest.mark.postgres
def test_the_tests_of_the_page_pass_on_postgresql(postgres_project: DjangoProject) -> None:
    assert "Ran 2 tests" in postgres_project.manage("test")


_TESTS = """
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from mainspring.contrib.django import app, task
from mainspring.contrib.django.testing import MainspringTestMixin
from shop.models import Order
from shop.tasks import send_receipt

seen = []

@task
async def count_async() -> int:
    return await Order.objects.acount()

@task(retries=2)
def fail_once(order_id: int) -> int:
    seen.append(order_id)
    if len(seen) == 1:
        raise ValueError("once")
    with transaction.atomic():
        Order.objects.filter(pk=order_id).update(receipt_sent=True)
    return Order.objects.count()


class Checks:
    def test_handlers_see_uncommitted_rows_and_wait_for_time(self):
        for _ in range(2):
            order = Order.objects.create(customer="ada@example.com")
        assert count_async.sync.submit().result() == 2
        handle = fail_once.sync.submit(order.pk)
        assert not Order.objects.get(pk=order.pk).receipt_sent
        self.scheduler.advance("1h")
        assert handle.result() == 2
        assert Order.objects.get(pk=order.pk).receipt_sent
        later = send_receipt.options(delay="3d").sync.submit(order.pk)
        assert later.view().state == "scheduled"
        self.scheduler.advance("3d")
        assert later.result() == "sent to ada@example.com"

    def test_nothing_is_left_of_another_test(self):
        assert Order.objects.count() == 0
        assert len(self.scheduler.runs()) == 0


class InTransaction(Checks, MainspringTestMixin, TestCase): ...
class Committed(Checks, MainspringTestMixin, TransactionTestCase):
    def setUp(self):
        super().setUp()
        seen.clear()
"""


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_handlers_run_on_the_connections_of_a_test(
    project: DjangoProject, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgres":
        project = request.getfixturevalue("postgres_project")
    (project.folder / "shop/tests.py").write_text(_TESTS)
    assert "Ran 4 tests" in project.manage("test")


def test_a_submit_in_a_test_without_the_helper_is_refused_on_sqlite_in_memory(project: DjangoProject) -> None:
    tests = project.folder / "shop/tests.py"
    tests.write_text(tests.read_text().replace("MainspringTestMixin, TestCase", "TestCase"))
    done = project.try_to_run("manage.py", "test")
    assert done.returncode == 1
    assert "store: memory: reaches no worker from here (in a test, MainspringTestMixin runs tasks)" in done.stdout
    assert not (project.folder / "mainspring.db").exists()


@pytest.mark.postgres
def test_a_submit_is_committed_and_rolled_back_with_the_transaction(postgres_project: DjangoProject) -> None:
    output = postgres_project.script("""
from django.db import connection, transaction
from mainspring import NotFound
from mainspring.contrib.django import app
from shop.models import Order
from shop.orders import place_order
from shop.tasks import send_receipt

def is_there(run):
    try:
        return app.handle(run).sync.view().id == run
    except NotFound:
        return False

def count():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM mainspring.run")
        return cursor.fetchone()[0]

with transaction.atomic():
    order = Order.objects.create(customer="ada@example.com")
    handle = send_receipt.sync.submit(order.pk)
    assert not is_there(handle.id)
    backend = connection.connection.info.backend_pid
assert is_there(handle.id) and backend

with transaction.atomic():
    many = app.submit_many_sync([send_receipt.prepare(1), send_receipt.prepare(2)])
    try:
        with transaction.atomic():
            lost = send_receipt.sync.submit(3)
            raise ValueError
    except ValueError:
        pass
assert all(is_there(one.id) for one in many)
assert not is_there(lost.id)

place_order("eve@example.com")
before = Order.objects.count(), count()
try:
    place_order("")
except ValueError as error:
    print(error)
assert (Order.objects.count(), count()) == before == (2, 4), (before, Order.objects.count(), count())

outside = send_receipt.sync.submit(1)
assert is_there(outside.id)
""")
    assert output == "there is no customer\n"


@pytest.mark.postgres
def test_mainspring_up_finds_the_project_and_replaces_broken_connections(postgres_project: DjangoProject) -> None:
    project = postgres_project
    project.add_settings("DATABASES['default'].update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)")
    with (project.folder / "shop/tasks.py").open("a") as tasks:
        tasks.write("""

BACKEND = "SELECT pg_backend_pid()"


@task(retries=0)
def backend() -> tuple[int, int]:
    from django.db import connection
    with connection.cursor() as cursor:
        cursor.execute(BACKEND)
        return cursor.fetchone()[0], Order.objects.count()


@task(retries=0)
async def block(name: str) -> None:
    from asgiref.sync import sync_to_async
    from pathlib import Path
    from time import sleep

    def wait():
        Path(name).touch()
        while Path(name).exists():
            sleep(0.01)

    await sync_to_async(wait)()


@task(retries=0)
async def needs_no_database() -> str:
    return "done"


@task(retries=0)
async def backend_async() -> tuple[int, int]:
    from asgiref.sync import sync_to_async
    return await sync_to_async(backend.function)()
""")
    project.environment["MAINSPRING_PORT"] = str(port := free_port())
    up = project.start("-m", "mainspring", "up", "shop.tasks:app")
    try:
        wait_for_http(f"http://127.0.0.1:{port}", up, project.log)
        output = project.script("""
from django.db import connection
from mainspring.contrib.django import app
from shop.models import Order
from shop.tasks import backend, backend_async

for task in (backend, backend_async):
    first, _ = task.sync.submit().result("5m")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [first])
        assert cursor.fetchone() == (True,)
    second, _ = task.sync.submit().result("5m")
    assert second != first

from pathlib import Path
from shop.tasks import block, needs_no_database
busy = Path("blocking").resolve()
blocking = block.sync.submit(str(busy))
while not busy.exists():
    assert not blocking.view().state.ended
assert needs_no_database.sync.submit().result("5m") == "done"
busy.unlink()
blocking.result("5m")
print("ok")
""")
        assert output == "ok\n"
    finally:
        assert terminate(up) == 0


def test_a_scheduler_and_a_worker_run_apart_with_the_settings_of_the_project(project: DjangoProject) -> None:
    project.manage("migrate")
    project.add_settings('MAINSPRING = {"schema": "jobs", "store": "apart.db", "scheduler.name": "apart"}')
    found = re.findall(r"^python (manage\.py mainspring (?:scheduler|worker) ?.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(found) == 2
    processes = [project.start(*command.split(), "--settings", "mysite.settings") for command in found]
    try:
        output = project.script("""
from shop.models import Order
from shop.tasks import send_receipt
order = Order.objects.create(customer="ada@example.com")
print(send_receipt.options(delay="1s").sync.submit(order.pk).result("5m"))
""")
        assert output == "sent to ada@example.com\n"
        assert (project.folder / "apart.db").exists()
        shown = project.manage("mainspring", "runs", "list", "--settings=mysite.settings", "--json")
        assert json.loads(shown)["items"][0]["status"] == "succeeded"
    finally:
        assert [terminate(process) for process in processes] == [0, 0], project.log.read_text()


def test_the_settings_of_the_page_are_valid_and_mistakes_are_named(project: DjangoProject) -> None:
    for block in project.blocks:
        if "MAINSPRING = {" in block:
            project.add_settings(block)
    assert "no issues" in project.manage("check")
    shown = project.script("from mainspring.contrib.django import app\nprint(app.name, app.settings())")
    assert shown.startswith("shop Settings(")
    for part in ("port=7071", "'mail': 20", f"store='{project.folder}/mainspring.db'"):
        assert part in shown
    for wrong, said in {
        '{"wroker": {"grace": "1m"}}': "MAINSPRING: wroker.grace: is no setting (did you mean worker.grace?)",
        '{"worker.grace": "soon"}': "MAINSPRING: worker.grace",
        '{"worker": {"queues": {"mail": 0}}}': "MAINSPRING: worker.queues: mail:0 is not a queue with its slots",
        '["port"]': "MAINSPRING: ['port'] is not a dictionary",
        '{"name": 7}': "MAINSPRING: name: 7 is not a name",
        '{"tenant": "*"}': "MAINSPRING: tenant:",
    }.items():
        project.add_settings(f"MAINSPRING = {wrong}")
        done = project.try_to_run("manage.py", "check")
        assert done.returncode == 1
        assert f"?: (mainspring.E001) {said}" in done.stdout
    for command in ("up", "runs list"):
        done = project.try_to_run("manage.py", "mainspring", *command.split())
        assert done.returncode == 2
        assert done.stdout.startswith("mainspring: MAINSPRING: tenant:")
        assert len(done.stdout.splitlines()) == 1


def test_a_project_that_cannot_be_loaded_is_one_line(project: DjangoProject) -> None:
    project.environment["DJANGO_SETTINGS_MODULE"] = "nowhere.settings"
    done = project.try_to_run("-m", "mainspring", "up", "shop.tasks:app")
    assert done.returncode == 2
    assert done.stdout == "mainspring: application: shop.tasks cannot be imported: No module named 'nowhere'\n"


def test_the_environment_names_another_store_and_commands_go_before_settings(project: DjangoProject) -> None:
    show = "from mainspring.contrib.django import app\nprint(app.settings({'port': 9}).port, app.settings().store)"
    project.environment["MAINSPRING_STORE"] = _DATABASE
    project.add_settings('MAINSPRING = {"port": 8}')
    assert project.script(show) == f"9 {_DATABASE}\n"
    project.add_settings('MAINSPRING = {"store": "jobs.db"}')
    assert project.script(show) == "9 jobs.db\n"


def test_the_store_is_the_address_of_the_default_database() -> None:
    project = DjangoProject(Path.cwd())
    cases = {
        "{'HOST': 'db', 'PORT': '5433', 'USER': 'a b', 'PASSWORD': 'p@:/?'}": "a%20b:p%40%3A%2F%3F@db:5433/shop",
        "{}": "/shop",
        "{'HOST': '/run/postgresql', 'USER': 'shop'}": "shop@/shop?host=%2Frun%2Fpostgresql",
        "{'HOST': '/run/pg', 'PORT': 5433}": "/shop?host=%2Frun%2Fpg&port=5433",
        "{'HOST': '::1'}": "[::1]/shop",
        "{'HOST': 'a', 'OPTIONS': {'sslmode': 'require', 'options': '-c x=y'}}": "a/shop?sslmode=require",
        "{'NAME': '', 'OPTIONS': {'service': 'shop'}}": "store: cannot be read from DATABASES['default']",
    }
    for given, expected in cases.items():
        shown = project.run(
            "-c",
            f"""
from django.conf import settings
settings.configure(DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "shop", **{given}}}}})
from mainspring.contrib.django.database import database_store
try:
    print(database_store())
except Exception as error:
    print(error)
""",
        )
        assert shown.removeprefix("postgresql://").startswith(expected), (given, shown)
