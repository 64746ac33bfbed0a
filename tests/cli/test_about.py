"""``version``, ``completion`` and ``help``."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring import __version__
from tests.support.command_line import run_command

#: How each shell reads a script without running it.
CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
#: Sources the script as a shell does, and completes the second word.
COMPLETE = {
    "bash": """
source {script}
COMP_WORDS=(mainspring schedul) COMP_CWORD=1
_mainspring_completion mainspring
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # Outside of its line editor, zsh has no completion system: print what the script passes to it.
    "zsh": """
compdef() {{ }}
_arguments() {{ print -r -- "$@" | grep -o '"schedul[a-z]*"' | tr -d '"' }}
words=(mainspring schedul) CURRENT=2
source {script}
_mainspring_completion
""",
    "fish": """
source {script}
complete --do-complete "mainspring schedul" | cut -f 1
""",
}


def test_version_is_the_same_as_the_option(tmp_path: Path) -> None:
    found = run_command(tmp_path, "version")
    assert found.returncode == 0
    assert found.stdout.splitlines()[0] == f"mainspring {__version__}"
    assert found.stdout == run_command(tmp_path, "--version").stdout


@pytest.mark.parametrize("words", [(), ("jobs",), ("jobs", "submit"), ("up",)])
def test_help_is_the_same_as_the_option(tmp_path: Path, words: tuple[str, ...]) -> None:
    found = run_command(tmp_path, "help", *words)
    assert found.returncode == 0
    assert found.stdout == run_command(tmp_path, *words, "--help").stdout


@pytest.mark.parametrize("shell", CHECKS)
def test_completion_prints_a_script_for_the_shell(tmp_path: Path, shell: str) -> None:
    found = run_command(tmp_path, "completion", shell)
    assert found.returncode == 0
    assert f"_MAINSPRING_COMPLETE=complete_{shell}" in found.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(found.stdout)
        subprocess.run([*CHECKS[shell], tmp_path / "script"], check=True)


@pytest.mark.parametrize("shell", COMPLETE)
def test_the_script_completes_commands(tmp_path: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    script = tmp_path / "script"
    script.write_text(run_command(tmp_path, "completion", shell).stdout)
    found = subprocess.run(
        [shell, "-c", COMPLETE[shell].format(script=script)],
        # The script calls the program by its name.
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(found.stdout.split()) == ["scheduler", "schedulers", "schedules"]
