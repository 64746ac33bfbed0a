"""The project of the Django page, as a reader makes it, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.doc_blocks import write_blocks
from tests.support.processes import PYTHONPATH

PAGE = Path(__file__).parents[2] / "docs/guides/django.md"


class DjangoProject:
    """Runs commands and scripts in the folder of ``manage.py``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment.update(PYTHONPATH=PYTHONPATH, PYTHONUNBUFFERED="1", COLUMNS="160")

    def make(self) -> None:
        """Run the commands of the page, and write its files. Settings that it shows later are left out."""
        self.run("-m", "django", "startproject", "mysite", ".")
        self.manage("startapp", "shop")
        settings = self.folder / "mysite/settings.py"
        made = settings.read_text()
        write_blocks(PAGE, self.folder)
        self.blocks: list[str] = settings.read_text().split("# mysite/settings.py\n")[1:]
        settings.write_text(f"{made}\n{self.blocks[0]}")
        self.manage("makemigrations", "shop")

    def add_settings(self, text: str) -> None:
        with (self.folder / "mysite/settings.py").open("a") as settings:
            settings.write(f"\n{text}\n")

    def use_postgres(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": parts.port,
            # The role of the tests has the name of the schema.
            "OPTIONS": {"options": "-c search_path=public"},
        }
        self.add_settings(f"DATABASES = {{'default': {database!r}}}")

    def manage(self, *words: str) -> str:
        """Run a command of ``manage.py`` that succeeds; its output."""
        return self.run("manage.py", *words)

    def script(self, text: str) -> str:
        """Run a script that has set up Django."""
        self.environment["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
        try:
            return self.run("-c", f"import django\ndjango.setup()\n{text}")
        finally:
            del self.environment["DJANGO_SETTINGS_MODULE"]

    def run(self, *words: str) -> str:
        done = self.try_to_run(*words)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def try_to_run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    @property
    def log(self) -> Path:
        return self.folder / "processes.log"
