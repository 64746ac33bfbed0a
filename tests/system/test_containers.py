"""The task ``container``: the commands that it gives podman or docker, and that it removes every container."""

import asyncio
import shutil
import subprocess
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.base.secrets import SecretRules
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.wakeups import CANCELS
from mainspring.core.worker.builtin.confinement import Limits
from mainspring.core.worker.builtin.container import CLIENT_VARIABLES, Containers, find_engine
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.secrets import Keyring
from mainspring.integrations.environment_secrets import EnvironmentSecrets
from tests.support.builders import a_held_run, a_policy, a_run
from tests.support.builtin_worker import working
from tests.support.waiting import eventually
from tests.support.worker_kit import Bench

pytestmark = pytest.mark.system

IMAGE = "registry.example/tools/report:1"
#: Stands for podman and records its calls. ``run`` ends like the container, or waits.
ENGINE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$1" in
run) for word in "$@"; do last=$word; done
     [ "$last" = wait ] && echo ready && sleep 300
     env > "$(dirname "$0")/client"
     for word in "$@"; do case $word in --env-file=*) cat "${word#*=}" > "$(dirname "$0")/container"; esac; done
     cat; [ "$last" = fail ] && exit 137; exit 0;;
inspect) cat "$(dirname "$0")/oom";;
esac
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "podman"
    path.write_text(ENGINE)
    path.chmod(0o755)
    (tmp_path / "oom").write_text("false\n")
    return path


def a_worker(engine: str, images: tuple[str, ...] = (IMAGE,)) -> AbstractAsyncContextManager[Bench]:
    return working(BuiltinTasks(containers=Containers(engine, images, grace=200 * MILLISECOND)))


def a_container_run(**payload: object) -> NewRun:
    encoded = msgspec.json.encode({"image": IMAGE, **payload})
    return a_run(task="container", payload=encoded, policy=a_policy(retries=0))


def read_variables(path: Path) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in path.read_text().splitlines())}


def calls(engine: Path) -> list[str]:
    return (engine.parent / "calls").read_text().splitlines()


def test_a_container_has_no_network_no_writable_files_no_capabilities_and_its_limits() -> None:
    limits = Limits(memory=1 << 28, cpus=0.5, processes=50, open_files=100)
    containers = Containers("docker", [IMAGE], limits=limits)
    held = a_held_run()
    call = containers.check(msgspec.json.encode({"image": IMAGE, "command": ["a", "b c"], "env": {"API_KEY": "x"}}))
    argv = containers.argv(call, held, 7)
    assert argv[:2] == ["docker", "run"]
    assert argv[-3:] == [IMAGE, "a", "b c"]
    assert {
        *(f"--name=mainspring-{held.id}", "--network=none", "--read-only", "--cap-drop=ALL", "--tmpfs=/tmp"),
        *("--security-opt=no-new-privileges", "--pids-limit=50", f"--memory={1 << 28}", f"--memory-swap={1 << 28}"),
        *("--cpus=0.5", "--ulimit=nofile=100", "--env-file=/dev/fd/7"),
    } <= set(argv)
    assert not any(word.startswith("--env=") for word in argv)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"image": "registry.example/other:1"}, r"payload\.image: .* is not allowed here"),
        ({"image": "--privileged"}, r"payload\.image: '--privileged' is not an image"),
        ({"image": IMAGE, "network": "host"}, r"payload\.network: is no field of this"),
        ({"image": IMAGE, "env": {"LD_PRELOAD": "x"}}, r"payload\.env"),
        ({"image": IMAGE, "env": {"A": "1\nB=2"}}, r"payload\.env: A holds a line break"),
        ({"image": IMAGE, "env": {"A": "1\r"}}, r"payload\.env: A holds a line break"),
        ({"command": ["true"]}, r"payload\.image: is missing"),
    ],
)
def test_a_payload_that_is_not_allowed_is_rejected_before_it_is_submitted(
    payload: dict[str, object], words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        BuiltinTasks(containers=Containers("podman", [IMAGE])).check("container", msgspec.json.encode(payload))


def test_images_are_allowed_by_prefix_and_the_task_is_off_without_podman_or_docker() -> None:
    containers = Containers("podman", ["registry.example/tools/*"])
    containers.check(b'{"image":"registry.example/tools/a@sha256:00"}')
    with pytest.raises(Invalid, match="is not allowed here"):
        containers.check(b'{"image":"registry.example/toolsx"}')
    assert "container" not in BuiltinTasks().names
    with pytest.raises(Invalid, match="running containers is off here"):
        BuiltinTasks().check("container", b'{"image":"a"}')
    with pytest.raises(Invalid, match="there is no podman-that-is-not-there here"):
        find_engine("podman-that-is-not-there")


async def test_a_container_receives_its_input_and_is_removed_before_and_after(engine: Path) -> None:
    async with a_worker(str(engine)) as bench:
        (run,) = await bench.submit(a_container_run(env={"API_KEY": "k"}, stdin={"n": 1}))
        view = await bench.until(run)
    assert view.state is RunState.SUCCEEDED, view.error
    assert msgspec.json.decode(view.result or b"")["stdout"] == '{"n":1}'
    inside = read_variables(engine.parent / "container")
    assert (inside["API_KEY"], inside["MAINSPRING_RUN_ID"]) == ("k", run)
    assert "PATH" not in inside
    first, second, third = calls(engine)
    assert first == third == f"rm --force mainspring-{run}"
    assert second.startswith("run --interactive")


#: Variables by which docker, podman and the libraries in them choose a server, a configuration or a helper program.
OF_THE_CLIENT = (
    *CLIENT_VARIABLES,
    *(
        "DOCKER_API_VERSION",
        "DOCKER_CLI_PLUGIN_EXTRA_DIRS",
        "DOCKER_CUSTOM_HEADERS",
        "CONTAINERS_CONF",
        "CONTAINER_CONNECTION",
    ),
    *(
        "CONTAINERS_STORAGE_CONF",
        "REGISTRY_AUTH_FILE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "https_proxy",
        "NO_PROXY",
    ),
    *(
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "SSLKEYLOGFILE",
        "SSH_AUTH_SOCK",
        "TMPDIR",
        "GODEBUG",
        "LANG",
        "USER",
        "LOGNAME",
    ),
)


async def test_no_variable_of_a_payload_reaches_the_client(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/docker.sock")
    monkeypatch.setenv("MAINSPRING_STORE", "postgresql://user:password@host/x")
    env = dict.fromkeys(OF_THE_CLIENT, "of the payload")
    async with a_worker(str(engine)) as bench:
        (run,) = await bench.submit(a_container_run(env=env))
        view = await bench.until(run)
    assert view.state is RunState.SUCCEEDED, view.error
    client = read_variables(engine.parent / "client")
    assert "of the payload" not in client.values()
    assert client["DOCKER_HOST"] == "unix:///run/docker.sock"
    assert "MAINSPRING_STORE" not in client
    inside = read_variables(engine.parent / "container")
    assert {name: inside[name] for name in env} == env
    assert "MAINSPRING_STORE" not in inside


async def test_a_secret_with_a_line_break_cannot_set_another_variable(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SECRET_PEM", "first\nMAINSPRING_TENANT=other")
    keyring = Keyring(EnvironmentSecrets(), SecretRules({"default": ("*",)}))
    async with working(BuiltinTasks(containers=Containers(str(engine), (IMAGE,)), keyring=keyring)) as bench:
        (run,) = await bench.submit(a_container_run(env={"PEM": "${secret:PEM}"}))
        view = await bench.until(run, RunState.FAILED)
    assert "payload.env: PEM holds a line break" in (view.error or "")
    assert not any(call.startswith("run ") for call in calls(engine))


async def test_a_cancelled_container_is_removed(engine: Path) -> None:
    async with a_worker(str(engine)) as bench:
        (run,) = await bench.submit(a_container_run(command=["wait"]))
        await eventually(lambda: bench.memory.log(run, 0, 10))
        await bench.memory.cancel([run])
        bench.wakeups.notify({CANCELS})
        await bench.until(run, RunState.CANCELLED)
    assert calls(engine)[-1] == f"rm --force mainspring-{run}"


async def test_out_of_memory_is_reported_as_such(engine: Path) -> None:
    (engine.parent / "oom").write_text("true\n")
    async with a_worker(str(engine)) as bench:
        (run,) = await bench.submit(a_container_run(command=["fail"]))
        view = await bench.until(run)
    assert (view.error or "").endswith(f"OutOfMemory: {IMAGE} ran out of memory")


#: Small, and has a shell.
REAL_IMAGE = "busybox"


def _find_engine_with_image() -> str:
    for name in ("podman", "docker"):
        found = shutil.which(name)
        if found is not None and _answers(found, "image", "inspect", REAL_IMAGE):
            return found
    return ""


def _answers(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == 0


async def test_a_real_container_gets_its_variables_and_can_neither_write_files_nor_reach_the_network() -> None:
    engine = await asyncio.to_thread(_find_engine_with_image)
    if not engine:
        pytest.skip(f"no podman or docker with the image {REAL_IMAGE} runs here")
    # These would choose another engine if they reached the client, and the value would not survive a shell.
    env = {"DOCKER_HOST": "unix:///nowhere", "CONTAINER_HOST": "unix:///nowhere", "TEXT": "\t'a' \"b\" # $HOME `id`"}
    async with a_worker(engine, (REAL_IMAGE,)) as bench:
        script = 'touch /x 2>&1; ls /sys/class/net; echo "$DOCKER_HOST $CONTAINER_HOST $TEXT"; cat'
        command = ["sh", "-c", script]
        (run,) = await bench.submit(a_container_run(image=REAL_IMAGE, command=command, env=env, stdin="hello"))
        view = await bench.until(run)
        left = await asyncio.to_thread(_answers, engine, "container", "inspect", f"mainspring-{run}")
    assert view.state is RunState.SUCCEEDED, view.error
    shown = msgspec.json.decode(view.result or b"")["stdout"]
    assert "Read-only" in shown
    assert "eth0" not in shown
    assert shown.endswith(" ".join(env.values()) + "\nhello")
    assert not left
