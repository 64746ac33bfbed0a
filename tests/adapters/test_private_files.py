"""Files that Mainspring creates belong to their owner alone, with any umask; doctor reports older ones."""

import ast
import asyncio
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import mainspring
from mainspring.cli.client import profiles
from mainspring.config.backups import restore_backup, take_backup, verify_backup
from mainspring.config.health import examine
from mainspring.config.sections.storage import RetentionSection, RunLogsSection
from mainspring.config.settings import Settings
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.model.runs.restored import Unfinished
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.worker.builtin.process import in_memory
from mainspring.integrations.files.folder import FolderBlobs
from mainspring.stores.sqlite.store import SqliteStore
from tests.support.builders import SHARDS, a_run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def list_modes(folder: Path) -> dict[str, str]:
    """The modes of all files and directories below, by their relative names."""
    return {str(path.relative_to(folder)): stat.filemode(path.stat().st_mode) for path in sorted(folder.rglob("*"))}


def list_exposed(folder: Path) -> dict[str, str]:
    return {name: mode for name, mode in list_modes(folder).items() if mode[4:] != "------"}


async def test_the_store_its_backups_and_its_restored_copies_are_private(tmp_path: Path, umask: int) -> None:
    path, backup = tmp_path / "mainspring.db", tmp_path / "a.backup"
    settings = Settings(store=str(path))
    store = SqliteStore(path, SystemClock(), shards=SHARDS)
    await store.open()
    try:
        await store.submit([a_run()])
        assert {"mainspring.db", "mainspring.db-shm", "mainspring.db-wal"} == list_modes(tmp_path).keys()
        assert list_exposed(tmp_path) == {}
        await take_backup(settings, backup, "test", lambda *_: None)
    finally:
        await store.close()
    await verify_backup(backup)
    await restore_backup(settings, backup, Unfinished.HOLD, lambda *_: None, replace=True)
    await restore_backup(
        Settings(store=str(tmp_path / "b.db")), backup, Unfinished.HOLD, lambda *_: None, replace=False
    )
    assert list_modes(tmp_path)["b.db"] == "-rw-------"
    assert list_exposed(tmp_path) == {}


async def test_run_logs_and_archives_in_a_folder_are_private(tmp_path: Path, umask: int) -> None:
    blobs = FolderBlobs(tmp_path)
    await blobs.put("2030/01/a", b"line")
    await blobs.put_all([("2030/01/b", b"line"), ("2030/02/c", b"line")])
    await blobs.close()
    assert list_modes(tmp_path) == {
        **dict.fromkeys(("2030", "2030/01", "2030/02"), "drwx------"),
        **dict.fromkeys(("2030/01/a", "2030/01/b", "2030/02/c"), "-rw-------"),
    }


def test_profiles_and_temporary_files_are_private(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profiles.write(profiles.Profiles())
    assert list_exposed(tmp_path / "mainspring") == {}
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with in_memory(b"a secret") as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077 == 0


#: Every place of the product that creates files or directories, and what makes it private.
CREATES = {
    ("core/runtime/backup_file.py", "open"): "a member of the archive",
    ("core/runtime/backup_file.py", "os.open"): "0600",
    ("integrations/files/folder.py", "tempfile.mkstemp"): "0600 by the standard library",
    ("core/runtime/private_files.py", "mkdir"): "0700",
    ("core/runtime/private_files.py", "os.open"): "0600",
    ("stores/sqlite/file_guard.py", "os.open"): "0600",
    ("stores/sqlite/upkeep/backup.py", "TemporaryDirectory"): "0700 by the standard library",
    ("stores/sqlite/upkeep/backup.py", "open"): "after create_private_file",
    ("config/backups.py", "tempfile.TemporaryDirectory"): "0700 by the standard library",
    (
        "features/schedules/commands/convert.py",
        "write_text",
    ): "a schedules file, which is the user's own and holds no secret",
    ("cli/client/profiles.py", "mkdir"): "0700",
    ("cli/client/profiles.py", "os.open"): "0600",
    ("core/worker/builtin/confinement.py", "write_text"): "a file of the kernel",
    ("core/worker/builtin/launcher.py", "open"): "a file of the kernel",
    ("core/worker/builtin/launcher.py", "os.makedirs"): "a cgroup",
    ("core/worker/builtin/process.py", "tempfile.TemporaryFile"): "0600 by the standard library",
    ("core/worker/executors/liveness.py", "tempfile.TemporaryFile"): "0600 by the standard library",
}
ALWAYS = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "mkstemp", "mkdtemp", "copyfile", "copy", "copy2"}
ALWAYS |= {"TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "FileHandler"}
#: ``copy`` and ``touch`` of other objects.
OTHERS = {"copy", "copy2"}


def creates(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in OTHERS:
        return ast.unparse(call.func).startswith("shutil.")
    if name in ALWAYS:
        return True
    if ast.unparse(call.func) == "os.open":
        return "O_CREAT" in ast.unparse(call)
    given = (*call.args, *(word.value for word in call.keywords))
    words = [each.value for each in given if isinstance(each, ast.Constant)]
    modes = [word for word in words if isinstance(word, str) and re.fullmatch("[rwax][bt+]{0,2}", word)]
    return name == "open" and any(word[0] in "wax" or "+" in word for word in modes)


def test_every_place_that_creates_files_is_known_to_be_private() -> None:
    """Without the benchmark, which keeps no data of users. SQLite opens its files after ``create_private_file``."""
    source = Path(mainspring.__file__).parent
    found = set()
    for path in source.rglob("*.py"):
        name = path.relative_to(source).as_posix()
        if not name.startswith("bench/"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and creates(node):
                    module, _, method = ast.unparse(node.func).rpartition(".")
                    found.add((name, f"{module}.{method}" if module in ("os", "tempfile", "shutil") else method))
    assert found == CREATES.keys()


async def find(settings: Settings, check: str) -> Finding:
    [finding] = [finding for finding in await examine(settings) if finding.check == check]
    return finding


async def test_doctor_reports_a_store_that_others_can_read_and_its_command_fixes_it(tmp_path: Path) -> None:
    path = tmp_path / "with space.db"
    settings = Settings(store=str(path))
    store = SqliteStore(path, SystemClock(), shards=SHARDS)
    await store.open()
    try:
        assert (await find(settings, "file permissions")).level is Level.OK
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            file.chmod(0o644)
        finding = await find(settings, "file permissions")
        assert finding.level is Level.WARNING
        assert f"{path}-wal" in finding.says
        await asyncio.to_thread(subprocess.run, shlex.split(finding.advice), check=True)
        assert (await find(settings, "file permissions")).level is Level.OK
        assert list_exposed(tmp_path) == {}
    finally:
        await store.close()


async def test_doctor_reports_folders_that_others_can_read_and_its_command_fixes_it(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    (folder / "2030").mkdir(parents=True)
    for each in (folder, folder / "2030"):
        each.chmod(0o755)
    store = SqliteStore(tmp_path / "m.db", SystemClock(), shards=SHARDS)
    await store.open()
    await store.close()
    address = f"file://{folder}"
    settings = Settings(
        store=str(tmp_path / "m.db"),
        run_logs=RunLogsSection(location=address),
        retention=RetentionSection(archive=address),
    )
    for check in ("run log permissions", "archive permissions"):
        finding = await find(settings, check)
        assert finding.level is Level.WARNING, finding
    await asyncio.to_thread(subprocess.run, shlex.split(finding.advice), check=True)
    assert list_exposed(folder) == {}
    for check in ("run log permissions", "archive permissions"):
        assert (await find(settings, check)).level is Level.OK
