"""What a test leaves changed in its process is found."""

import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.leaks import CommandState, ProcessState


def test_a_process_that_is_unchanged_has_no_changes() -> None:
    assert ProcessState().changes() == []


def test_changes_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.getcwd()
    monkeypatch.setitem(sys.modules, "replaced_by_a_test", ModuleType("first"))
    monkeypatch.setitem(sys.modules, "removed_by_a_test", ModuleType("removed_by_a_test"))
    before = ProcessState()
    monkeypatch.setenv("LEFT_BY_A_TEST", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "replaced_by_a_test", ModuleType("second"))
    monkeypatch.delitem(sys.modules, "removed_by_a_test")
    assert before.changes() == [
        "sys.modules['removed_by_a_test'] is gone",
        "sys.modules['replaced_by_a_test'] is another module",
        "os.environ LEFT_BY_A_TEST: None became '1'",
        f"working directory: {folder!r} became {str(tmp_path)!r}",
    ]


def test_a_thread_that_ends_by_itself_is_not_a_change() -> None:
    before = ProcessState()
    go_on = threading.Event()
    threading.Thread(target=go_on.wait).start()
    threading.Thread(target=go_on.set).start()
    assert before.changes() == []


def test_modules_of_a_folder_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "written_by_a_test.py").write_text("x = 1")
    (tmp_path / "also_written.py").write_text("import written_by_a_test")
    before = CommandState()
    monkeypatch.syspath_prepend(tmp_path)
    import_module("also_written")
    before.undo(tmp_path)
    assert not {"written_by_a_test", "also_written"} & sys.modules.keys()
    assert str(tmp_path) not in sys.path
