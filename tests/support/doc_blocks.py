"""The Python of a page, as the files that a reader would make of it."""

import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")


def write_blocks(page: Path, folder: Path) -> list[Path]:
    """A block that begins with ``# name.py`` begins that file; the blocks after it go on with it."""
    files: dict[Path, list[str]] = {}
    file: Path | None = None
    for block in _BLOCK.findall(page.read_text()):
        named = _FILE.match(block)
        if named is not None:
            file = folder / named[1]
        assert file is not None, f"{page}: the first block does not say which file it is"
        files.setdefault(file, []).append(block)
    for path, blocks in files.items():
        path.write_text("\n\n".join(blocks))
        # Another page may have had a file of this name.
        sys.modules.pop(path.stem, None)
    return list(files)
