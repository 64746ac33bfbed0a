"""Every place of the product that starts a program, and the environment that the program gets."""

import ast
from pathlib import Path

import mainspring

_STARTS = {"Popen", "create_subprocess_exec", "create_subprocess_shell"}
_STARTS |= {"posix_spawn", "posix_spawnp", "system", "popen"}
_STARTS |= {f"exec{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
_STARTS |= {f"spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
_SUBPROCESS = {"run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}

#: Each place, the environment that it passes on, and why. None: it passes on its own.
STARTS = {
    ("core/worker/builtin/launcher.py", "os.execve"): ("order.environment", "built from nothing"),
    ("core/worker/builtin/process.py", "subprocess.Popen"): ("{}", "the launcher of programs"),
    ("core/worker/builtin/container.py", "subprocess.run"): ("client_environment()", "fixed names of the worker's"),
    ("core/worker/executors/process.py", "subprocess.Popen"): ("{**os.environ, _MARK: mark}", "the application itself"),
    ("cli/autoscale.py", "asyncio.create_subprocess_exec"): (None, "a worker, on the user's command"),
    ("cli/processes.py", "os.execv"): (None, "this program again, for --reload"),
    ("core/runtime/build.py", "subprocess.run"): (None, "git, to print the commit of a checkout"),
}


def find_starts(source: Path) -> dict[tuple[str, str], str | None]:
    found = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                module, _, name = call.rpartition(".")
                if (name in _STARTS and module) or (module == "subprocess" and name in _SUBPROCESS):
                    passed = [word.value for word in node.keywords if word.arg == "env"]
                    passed += node.args[2:3] if name == "execve" else []
                    found[path.relative_to(source).as_posix(), call] = ast.unparse(passed[0]) if passed else None
    return found


def test_every_place_that_starts_a_program_passes_on_a_known_environment() -> None:
    expected = {place: environment for place, (environment, _) in STARTS.items()}
    assert find_starts(Path(mainspring.__file__).parent) == expected


def test_a_new_place_is_found(tmp_path: Path) -> None:
    code = "subprocess.run(['a'])\nos.system('b')\nasyncio.create_subprocess_exec('c', env={})"
    (tmp_path / "new.py").write_text(code)
    assert find_starts(tmp_path) == {
        ("new.py", "subprocess.run"): None,
        ("new.py", "os.system"): None,
        ("new.py", "asyncio.create_subprocess_exec"): "{}",
    }
