"""Write the Python blocks of a page into files, as a reader would."""

import re
from pathlib import Path

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.py)\n")


def write_blocks(page: Path, folder: Path) -> list[Path]:
    """A block that begins with ``# name.py`` starts a file. The following blocks are appended to it."""
    files: dict[Path, list[str]] = {}
    file: Path | None = None
    for block in _BLOCK.findall(page.read_text()):
        named = _FILE.match(block)
        if named is not None:
            file = folder / named[1]
        assert file is not None, f"{page}: the first block does not say which file it is"
        files.setdefault(file, []).append(block)
    for path, blocks in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(blocks))
    return list(files)
