"""Secrets from the environment and from a folder."""

from pathlib import Path

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.integrations.chained_secrets import ChainedSecrets
from mainspring.integrations.environment_secrets import EnvironmentSecrets
from mainspring.integrations.files.secrets import FolderSecrets


def a_file(folder: Path, name: str, data: bytes, mode: int = 0o600) -> None:
    (folder / name).write_bytes(data)
    (folder / name).chmod(mode)


def test_the_environment_comes_before_the_folder(tmp_path: Path) -> None:
    a_file(tmp_path, "API_KEY", b"from the folder\n")
    a_file(tmp_path, "OTHER", b"line\r\n")
    places = ChainedSecrets(
        [EnvironmentSecrets({"MAINSPRING_SECRET_API_KEY": "from outside"}), FolderSecrets(tmp_path)]
    )
    assert places.read("API_KEY") == "from outside"
    assert places.read("OTHER") == "line"
    assert places.read("ABSENT") is None


def test_a_changed_file_is_read_at_once(tmp_path: Path) -> None:
    secrets = FolderSecrets(tmp_path)
    a_file(tmp_path, "KEY", b"first value")
    assert secrets.read("KEY") == "first value"
    a_file(tmp_path, "KEY", b"second value")
    assert secrets.read("KEY") == "second value"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    a_file(tmp_path, "KEY", b"hidden value", mode)
    with pytest.raises(Invalid, match="others may read or write") as refused:
        FolderSecrets(tmp_path).read("KEY")
    assert "hidden" not in str(refused.value)


def test_a_binary_file_and_a_directory_are_refused_without_showing_their_contents(tmp_path: Path) -> None:
    a_file(tmp_path, "BINARY", b"\xff\xfehidden")
    (tmp_path / "FOLDER").mkdir(mode=0o700)
    for name in ("BINARY", "FOLDER"):
        with pytest.raises(Invalid, match="the secret's file") as refused:
            FolderSecrets(tmp_path).read(name)
        assert "hidden" not in str(refused.value)
