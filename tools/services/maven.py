"""Jars from Maven, downloaded once for all clones of a user."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from tools.services.program import Program
from tools.services.service import ServiceUnavailable, cache, install_packages

_DOWNLOADED_WITHIN_SECONDS = 900


def jars_folder(project: Path) -> Path:
    """The folder with the jars that a Maven project depends on. It exists complete or not at all."""
    return cache() / f"{project.stem}-{hashlib.sha256(project.read_bytes()).hexdigest()[:12]}"


def download(project: Path) -> None:
    """Copy the jars that a Maven project depends on into their folder."""
    jars = jars_folder(project)
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as scratch:
        fetched = Path(scratch) / "jars"
        command = ["mvn", "--batch-mode", "--quiet", "--file", str(project)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fetched}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_DOWNLOADED_WITHIN_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise ServiceUnavailable(f"{project.stem} cannot be had: {' '.join(command)} did not end") from error
        if done.returncode != 0:
            raise ServiceUnavailable(f"{project.stem} cannot be had: {' '.join(command)}\n{done.stdout[-2000:]}")
        if not jars.exists():
            fetched.rename(jars)


class JavaLibraries(Program):
    """Jars, and the JDK that uses them. The address is the folder of the jars."""

    packages = ("default-jdk-headless", "maven")
    project: ClassVar[Path]

    def path(self) -> str:
        jars = jars_folder(self.project)
        return str(jars) if jars.exists() and shutil.which("javac") else ""

    def missing_packages(self) -> tuple[str, ...]:
        there = self.installed() or (shutil.which("javac") and shutil.which("mvn"))
        return () if there else self.packages

    def install(self) -> None:
        if missing := self.missing_packages():
            install_packages(self.name, missing, self.home)
        if not jars_folder(self.project).exists():
            download(self.project)
