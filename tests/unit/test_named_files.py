"""Source files that pages, comments and the Makefile name exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/mainspring"
#: ``core/store.py``, ``src/mainspring/core``: a path with a folder of the package, to a file.
_FILE = re.compile(r"(?<![\w./*-])(?:src/)?(?:mainspring/)?((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|sql|toml|html))(?![\w/])")
#: Decisions and old entries keep the names of their time.
_LEFT_OUT = ("docs/design/adr/", "CHANGELOG.md", "tests/", "examples/", "deploy/")


def list_texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        ROOT / name
        for name in listed.splitlines()
        if name.endswith((".md", ".sql", ".py", ".toml", "Makefile")) and not name.startswith(_LEFT_OUT)
    ]


def exists(name: str, text: Path) -> bool:
    """Whether a file has this path from the root, the package, or any folder above the file that names it."""
    folders = [ROOT, PACKAGE, *text.parents, *(PACKAGE / part for part in ("core", "core/model", "stores"))]
    return any((folder / name).exists() for folder in folders)


def test_every_named_source_file_exists() -> None:
    known = {entry.name for entry in PACKAGE.iterdir() if entry.is_dir()} | {"tools", "bench"}
    found = [
        (str(text.relative_to(ROOT)), name)
        for text in list_texts()
        for name in _FILE.findall(text.read_text())
        if name.split("/")[0] in known | {"domain", "ports", "adapters", "control", "worker", "bootstrap", "api", "ui"}
    ]
    assert len(found) > 50
    assert [(text, name) for text, name in found if not exists(name, ROOT / text)] == []
