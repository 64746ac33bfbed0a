"""``manage.py mainspring``: the command line of Mainspring, with the application and the store of this project."""

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from mainspring.cli import exits
from mainspring.cli.main import main
from mainspring.contrib.django import app
from mainspring.core.model.base.errors import MainspringError

_APPLICATION = "mainspring.contrib.django:app"
#: Commands that take the application. All others take its store.
_PROCESSES = ("up", "worker", "scheduler", "api")


class Command(BaseCommand):
    help = "The command line of Mainspring: up, worker, scheduler, api, jobs, runs, doctor and more."

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Pass all options to Mainspring, except those that locate Django's settings."""
        own = CommandParser(add_help=False, allow_abbrev=False)
        own.add_argument("--settings")
        own.add_argument("--pythonpath")
        _, words = own.parse_known_args(argv[2:])
        self.handle(words=words)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *_: object, **options: Any) -> None:
        words: list[str] = options["words"]
        if words and words[0] in _PROCESSES:
            words = [words[0], _APPLICATION, *words[1:]]
        else:
            try:
                settings = app.settings()
            except MainspringError as error:
                self.stderr.write(f"mainspring: {error}")
                sys.exit(exits.find_exit_code(error))
            os.environ.setdefault("MAINSPRING_STORE", settings.store)
            os.environ.setdefault("MAINSPRING_SCHEMA", settings.schema)
        sys.argv = ["mainspring", *words]
        main()
