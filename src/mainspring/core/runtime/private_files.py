"""Files and directories that only their owner can use, with any umask."""

import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mainspring.core.model.cluster.diagnosis import Finding, found, warned

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_private_file(path: Path) -> None:
    """Create an empty file with the mode 0600. An existing file is left unchanged."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents with the mode 0700. Existing ones are left unchanged."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
            each.chmod(0o700)


def examine_modes(check: str, paths: Iterable[Path], *, recursive: bool = False) -> Finding:
    """Report those of these files that other users of the machine can access. Missing ones are skipped."""
    exposed = [path for path in paths if _is_exposed(path)]
    if not exposed:
        return found(check, "only their owner can access the files")
    command = "chmod -R go= " if recursive else "chmod go= "
    says = f"other users can access {', '.join(str(path) for path in exposed)}"
    return warned(check, says, command + " ".join(shlex.quote(str(path)) for path in exposed))


def _is_exposed(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _OTHERS)
    except OSError:
        return False
