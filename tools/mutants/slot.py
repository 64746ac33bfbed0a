"""A private copy of ``src`` in which one mutant at a time is judged."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from tools.mutants.mutant import Mutant
from tools.mutants.paths import DATA, ROOT
from tools.mutants.record import build_environment
from tools.mutants.server import Request, RunResult


class Slot:
    """Use it as a context. Not thread-safe: each thread has its own."""

    def __init__(self, number: int) -> None:
        self._folder = DATA / "slots" / str(number)
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Slot:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        # With the times of the files, so that their compiled forms stay valid.
        shutil.copytree(ROOT / "src", self._folder / "src")
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def judge(self, mutant: Mutant, text: str, request: Request) -> RunResult:
        """``text``: of the mutant's file, unchanged."""
        file = self._folder / mutant.file
        # A compiled form is valid by the second and the size of its source, which a mutant shares.
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        file.write_text(mutant.apply(text))
        try:
            return self._ask(request)
        finally:
            shutil.copy2(ROOT / mutant.file, file)

    def check(self, request: Request) -> RunResult:
        """Run tests on the unchanged package."""
        return self._ask(request)

    def _ask(self, request: Request) -> RunResult:
        server = self._server
        assert server is not None
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asdict(request)) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            self._stop()
            self._start()
            return RunResult("error", "", "the server of the slot ended")
        return RunResult(**json.loads(line))

    def _start(self) -> None:
        environment = build_environment(self._folder / "src")
        environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self._folder / "hypothesis")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tools.mutants.server", str(self._folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            assert server.stdin is not None
            server.stdin.close()
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
