"""Builds the site: ``make docs``, or python -m tools.site.build [folder]."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.links import ROOT
from tools.site.sources import assemble

CONFIGURATION = Path(__file__).parent
OUTPUT = ROOT / "build" / "docs"


def build(output: Path) -> int:
    """The exit status of Sphinx: a warning is an error. The previous output is replaced on success."""
    with tempfile.TemporaryDirectory(prefix="mainspring-docs-") as name:
        folder = Path(name)
        source, made = folder / "source", folder / "site"
        assemble(ROOT, source)
        command = ["-m", "sphinx", "-b", "html", "-c", str(CONFIGURATION), "-d", str(folder / "doctrees")]
        status = subprocess.run(
            [sys.executable, *command, "-q", "-W", "--keep-going", str(source), str(made)], check=False
        ).returncode
        if status == 0:
            shutil.rmtree(output, ignore_errors=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(made, output)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site.build", description="The documentation as a site.")
    parser.add_argument("output", nargs="?", type=Path, default=OUTPUT, help="where to; build/docs without it")
    output = parser.parse_args().output
    status = build(output)
    if status == 0:
        print(f"{output / 'index.html'}: open it in a browser, or serve the folder")
    return status


if __name__ == "__main__":
    sys.exit(main())
