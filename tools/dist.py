"""What a release consists of, in ``dist/``: wheel, source distribution, SBOM, checksums. ``make dist``."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The versions that are tested.
PINNED = ROOT / "requirements" / "dev.txt"


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv") or "uv"


def build(folder: Path, *options: str, source: Path = ROOT) -> list[Path]:
    """By default the source distribution, and the wheel of that."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    _run([uv(), "build", "--quiet", f"--out-dir={folder}", *options, str(source)])
    return sorted(path for path in set(folder.iterdir()) - before if path.suffix in (".whl", ".gz"))


def install(wheel: Path, folder: Path, extra: str = "") -> Path:
    """A fresh environment with the wheel and one of its extras, in the versions that are tested. Its programs."""
    _run([uv(), "venv", "--quiet", f"--python={sys.executable}", str(folder)])
    wanted = f"mainspring{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"
    command = [uv(), "pip", "install", "--quiet", f"--python={folder}/bin/python", f"--constraint={PINNED}", wanted]
    _run(command)
    return folder / "bin"


def write_sbom(wheel: Path, file: Path) -> None:
    """CycloneDX: all that the wheel with all of its extras brings, with licences and who needs whom.

    The program that writes it holds it against its schema.
    """
    with tempfile.TemporaryDirectory() as scratch:
        programs = install(wheel, Path(scratch) / "environment", "all")
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--validate"]
        command += ["--gather-license-texts", "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
        command += ["--output-format", "JSON", "--output-file", str(file), str(programs / "python")]
        _run(command)


def main() -> int:
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    made = build(folder)
    [wheel] = [path for path in made if path.suffix == ".whl"]
    sbom = folder / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    write_sbom(wheel, sbom)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in [*made, sbom])
    (folder / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    return 0


def _run(command: list[str]) -> None:
    # As long ago as archives can have it, so that they are the same whenever they are built.
    environment = {"SOURCE_DATE_EPOCH": "315532800"} | os.environ
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
