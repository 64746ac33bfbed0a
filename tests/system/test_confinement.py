"""The task ``shell`` with real processes: the user and the limits of a command, and the meaning of its exit code."""

import os
import pwd
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.config.sections.tasks import TasksSection
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.runs.handler_errors import GiveUp, RetryLater
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.worker.builtin.confinement import Confinement, Limits
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.executors.marks import marked
from mainspring.core.worker.handler import AsyncHandler
from tests.support.builders import a_held_run, a_policy, a_run
from tests.support.builtin_worker import no_egress, working

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's here")]

#: Variables by which an interpreter, a loader or a common tool runs code of the submitter's choice.
LOADS_CODE = (
    *(
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONWARNINGS",
        "PYTHONHOME",
        "PYTHONINSPECT",
        "PERL5OPT",
        "PERL5LIB",
        "PERL5DB",
    ),
    *("NODE_OPTIONS", "NODE_PATH", "RUBYOPT", "RUBYLIB", "BASH_FUNC_x", "SHELLOPTS", "PS4", "ZDOTDIR", "PHPRC"),
    *("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH", "LUA_INIT", "R_PROFILE", "GCONV_PATH", "HOME"),
    *("GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "PAGER", "EDITOR", "LESSOPEN", "DOCKER_HOST", "OPENSSL_CONF"),
    *("TAR_OPTIONS", "MAVEN_OPTS", "GRADLE_OPTS", "ERL_FLAGS", "RUSTFLAGS", "MANPAGER", "PSQL_PAGER", "SUDO_ASKPASS"),
    *("PSQLRC", "WGETRC", "CURL_HOME", "AWKPATH", "AWS_CONFIG_FILE", "ANSIBLE_CONFIG", "GCC_EXEC_PREFIX", "CC"),
)


def builtin(limits: Limits | None = None, user: str = "", **options: Any) -> BuiltinTasks:
    confinement = Confinement(limits, user=user)
    return BuiltinTasks(**{"commands": True, "confinement": confinement, **options})


def command(*words: str, **payload: object) -> NewRun:
    encoded = msgspec.json.encode({"command": words, **payload})
    return a_run(task="shell", payload=encoded, policy=a_policy(retries=0))


async def ended(tasks: BuiltinTasks, run: NewRun) -> RunView:
    async with working(tasks) as bench:
        (run_id,) = await bench.submit(run)
        return await bench.until(run_id)


def stdout(view: RunView) -> str:
    assert view.state is RunState.SUCCEEDED, view.error
    assert view.result is not None
    text: str = msgspec.json.decode(view.result)["stdout"]
    return text


def python(text: str, **payload: object) -> NewRun:
    return command(sys.executable, "-c", text, **payload)


async def test_a_program_cannot_gain_privileges_and_has_its_own_session() -> None:
    text = (
        "import os; print(open('/proc/self/status').read()); "
        "print('leader', os.getsid(0) == os.getpid() == os.getpgrp()); "
        "print('files', sorted(os.listdir('/proc/self/fd')))"
    )
    shown = stdout(await ended(builtin(), python(text)))
    assert "NoNewPrivs:\t1" in shown
    assert "leader True" in shown
    assert "files ['0', '1', '2', '3']" in shown, "nothing of the worker's is open; 3 is the folder that is listed"


async def test_limits_of_open_files_and_processor_time_apply_to_each_process() -> None:
    limits = Limits(cpu_time=SECOND, open_files=64)
    text = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))"
    assert stdout(await ended(builtin(limits), python(text))) == "(64, 64) (0, 0)\n"
    view = await ended(builtin(limits), python("while True: pass"))
    assert view.error is not None
    assert view.error.endswith("it has used up its time on a processor") or "SIGKILL" in view.error


async def test_a_limit_is_never_above_the_workers_own() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    text = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE)[1])"
    assert int(stdout(await ended(builtin(Limits(open_files=hard * 2)), python(text)))) == hard


async def test_out_of_memory_is_reported_as_such() -> None:
    view = await ended(builtin(Limits(memory=200_000_000)), python("x = bytearray(1_000_000_000)"))
    assert view.error is not None
    assert "OutOfMemory: " in view.error
    assert view.error.endswith("ran out of memory: 200000000 bytes are allowed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_program_runs_as_the_user_of_the_settings() -> None:
    tasks = builtin(user="nobody")
    entry = pwd.getpwnam("nobody")
    seen = stdout(await ended(tasks, command("sh", "-c", "grep -E '^(Uid|Gid|Groups)' /proc/self/status; echo $HOME")))
    ids = [[int(number) for number in line.split()[1:]] for line in seen.splitlines()[:3]]
    assert ids == [[entry.pw_uid] * 4, [entry.pw_gid] * 4, sorted(os.getgrouplist("nobody", entry.pw_gid))]
    assert seen.splitlines()[3] == entry.pw_dir


def test_an_unknown_user_and_a_folder_that_is_no_cgroup_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"tasks\.user: there is no user 'nobody-at-all' here"):
        Confinement(user="nobody-at-all").check()
    with pytest.raises(Invalid, match=r"tasks\.cgroup: .* is not a cgroup"):
        Confinement(cgroup=str(tmp_path)).check()


@pytest.mark.parametrize("escape", ["", "setsid --fork "])
async def test_a_program_with_more_processes_than_allowed_is_killed(escape: str) -> None:
    """Also where no cgroup counts them, and for root, whom RLIMIT_NPROC does not bind."""
    text = f"for number in $(seq 20); do {escape}sleep 300 & done; sleep 300"
    tasks = builtin(confinement=Confinement(Limits(processes=15), cgroup="/none"))
    view = await ended(tasks, command("sh", "-c", text))
    assert view.state is RunState.FAILED
    assert view.error is not None
    if os.geteuid() == 0:
        assert view.error.endswith("sh had more than 15 processes at a time, and was killed")
    assert marked([f"MAINSPRING_RUN_ID={view.id}\0".encode()]) == []


async def test_a_program_with_as_many_processes_as_allowed_runs() -> None:
    # For another user than root RLIMIT_NPROC counts everything that runs as this user.
    limits = Limits(processes=3 if os.geteuid() == 0 else 30_000)
    tasks = builtin(confinement=Confinement(limits, cgroup="/none"))
    assert stdout(await ended(tasks, command("sh", "-c", "sleep 1 & sleep 1 & wait; echo done"))) == "done\n"


def test_each_limit_that_no_cgroup_enforces_is_reported_with_what_holds_instead(tmp_path: Path) -> None:
    limits = Limits(memory=1 << 30, cpus=0.5, processes=20)
    weak = Confinement(limits, cgroup=str(tmp_path)).weak_limits()
    assert list(weak) == ["tasks.cpus", "tasks.memory", "tasks.processes"]
    assert weak["tasks.cpus"] == "not enforced"
    assert "each process" in weak["tasks.memory"]
    assert ("RLIMIT_NPROC" in weak["tasks.processes"]) == (os.geteuid() != 0)
    assert "is killed" in weak["tasks.processes"]
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    assert Confinement(limits, cgroup=str(tmp_path)).weak_limits() == {}
    assert Confinement(cgroup=str(tmp_path)).weak_limits() == {}
    assert not (tmp_path / "cgroup.subtree_control").exists(), "looking changes nothing"


def test_processes_of_root_are_not_enforced_where_the_kernel_shows_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    confinement = Confinement(Limits(processes=20), cgroup="/none")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert confinement.weak_limits() == {"tasks.processes": "not enforced: RLIMIT_NPROC does not bind root"}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "RLIMIT_NPROC" in confinement.weak_limits()["tasks.processes"]


def test_limits_are_set_in_the_cgroup_where_it_has_the_controller_and_otherwise_by_other_means(tmp_path: Path) -> None:
    """A folder stands for a cgroup: the kernel would read the files in it."""
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.subtree_control").write_text("memory cpu\n")
    limits = Limits(memory=1 << 30, cpus=0.5, processes=20, open_files=100, cpu_time=1_500_000)
    confinement = Confinement(limits, cgroup=str(tmp_path))
    # A file keeps what was last written; the kernel would show all that is enabled.
    order = confinement.order("mainspring-1-2", ["true"], {}, Path("/"))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"
    assert order.cgroup == str(tmp_path / "mainspring-1-2")
    by_rlimit = {"CPU": 2, "NOFILE": 100, "AS": 1 << 30}
    assert order.limits == (by_rlimit if os.geteuid() == 0 else {**by_rlimit, "NPROC": 20})
    assert order.processes == 20
    (tmp_path / "cgroup.subtree_control").write_text("memory cpu pids\n")
    (tmp_path / "cgroup.subtree_control").chmod(0o400)
    if os.geteuid() != 0:
        order = Confinement(limits, cgroup=str(tmp_path)).order("a", ["true"], {}, Path("/"))
        assert order.cgroup_limits["cpu.max"] == "50000 100000"
    assert limits.by_cgroup == {"memory": str(1 << 30), "cpu": "50000 100000", "pids": "20"}


# Commands by name


async def test_a_command_by_name_gets_its_first_arguments_from_the_settings() -> None:
    tasks = builtin(commands={"greet": ("echo", "hello")})
    assert stdout(await ended(tasks, command("greet", "you; date"))) == "hello you; date\n"
    with pytest.raises(Invalid, match=r"payload\.command: 'sh' is not allowed here \(tasks\.commands has greet\)"):
        tasks.check("shell", b'{"command": ["sh", "-c", "date"]}')


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "MAINSPRING_FENCE", "a b", ""])
def test_a_payload_that_sets_a_reserved_variable_is_rejected(name: str) -> None:
    with pytest.raises(Invalid, match=r"payload\.env"):
        builtin(env=[name]).check("shell", msgspec.json.encode({"command": ["true"], "env": {name: "x"}}))


@pytest.mark.parametrize("name", [*LOADS_CODE, "TZ", "HARMLESS"])
def test_a_payload_can_only_set_variables_that_the_settings_allow(name: str) -> None:
    payload = msgspec.json.encode({"command": ["true"], "env": {name: "x"}})
    with pytest.raises(Invalid, match=rf"payload\.env: {name} is not allowed here .*tasks\.env"):
        builtin(env=["OTHER", name.lower()]).check("shell", payload)
    builtin(env=["OTHER", name]).check("shell", payload)


@pytest.mark.parametrize("name", [*LOADS_CODE, "LD_PRELOAD", "PATH", "MAINSPRING_TENANT", "a b"])
def test_the_settings_cannot_allow_a_variable_that_loads_code(name: str) -> None:
    with pytest.raises(Invalid, match=r"tasks\.env: "):
        TasksSection(env=("TZ", name)).check()
    TasksSection(env=("TZ", "API_KEY", "AWS_REGION", "HTTPS_PROXY")).check()


async def test_an_allowed_variable_reaches_the_program() -> None:
    run = command("sh", "-c", "echo $REGION", env={"REGION": "eu"})
    assert stdout(await ended(builtin(env=["REGION"]), run)) == "eu\n"
    view = await ended(builtin(), run)
    assert view.state is RunState.FAILED
    assert "payload.env: REGION is not allowed here" in (view.error or "")


async def test_a_python_script_starts_isolated(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the neighbor was imported')")
    (tmp_path / "show.py").write_text("import json, sys; print(sys.flags.isolated, json.__name__)")
    run = a_run(task="shell", payload=b'{"script": "show.py"}', policy=a_policy(retries=0))
    assert stdout(await ended(builtin(scripts=tmp_path), run)) == "1 json\n"


# Exit codes


async def failure(run: NewRun) -> BaseException:
    """The exception that the handler raises."""
    handler = builtin().handlers(no_egress)["shell"]
    assert isinstance(handler, AsyncHandler)
    try:
        await handler.invoke(msgspec.structs.replace(a_held_run(), payload=run.payload))
    except Exception as error:
        return error
    raise AssertionError("it succeeded")


async def test_exit_codes_choose_between_fail_give_up_and_retry_later() -> None:
    assert isinstance(await failure(command("sh", "-c", "exit 65")), GiveUp)
    assert isinstance(await failure(command("sh", "-c", "exit 9", exitCodes={"9": "giveUp"})), GiveUp)
    later = await failure(command("sh", "-c", "exit 75"))
    assert isinstance(later, RetryLater)
    assert later.delay == MINUTE
    later = await failure(command("sh", "-c", "echo ::retry-after 5m; exit 75"))
    assert isinstance(later, RetryLater)
    assert later.delay == 5 * MINUTE
    plain = await failure(command("sh", "-c", "exit 1"))
    assert not isinstance(plain, GiveUp | RetryLater)
    assert not isinstance(await failure(command("sh", "-c", "exit 65", exitCodes={"65": "fail"})), GiveUp)


async def test_an_exit_code_can_be_a_success() -> None:
    view = await ended(builtin(), command("sh", "-c", "exit 3", exitCodes={"3": "ok"}))
    assert msgspec.json.decode(view.result or b"")["exitCode"] == 3


@pytest.mark.parametrize("codes", [{"256": "ok"}, {"x": "ok"}, {"1": "maybe"}, {"-1": "ok"}])
def test_a_payload_with_bad_exit_codes_is_rejected(codes: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=r"payload\.exitCodes"):
        builtin().check("shell", msgspec.json.encode({"command": ["true"], "exitCodes": codes}))


async def test_output_becomes_the_log_of_the_run_and_progress_lines_its_progress() -> None:
    text = "echo one; echo ::progress 3/10 third; echo two >&2; echo ::progress nonsense; printf three"
    async with working(builtin()) as bench:
        (run,) = await bench.submit(command("sh", "-c", text))
        view = await bench.until(run)
        lines = [line for piece in await bench.memory.log(run, 0, 100) for line in piece.text.splitlines()]
    assert sorted(lines) == ["::progress nonsense", "one", "three", "two"]
    assert view.progress is not None
    assert (view.progress.done, view.progress.total, view.progress.note) == (3, 10, "third")
