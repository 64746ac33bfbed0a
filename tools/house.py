"""``python -m tools.house [CHECKOUT]``: measures how the source tree is built, one row per property.

It reads files and imports nothing of Mainspring, so it can measure an older checkout for comparison:
``git worktree add /tmp/before COMMIT && python -m tools.house /tmp/before``. Only the functions of a submit are
counted in a program of that checkout (``tools/request_path.py``).
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST_FOLDER = 20
LONGEST_FILE = 400
MOST_METHODS = 20
MOST_PARAMETERS = 8


def main(arguments: list[str]) -> int:
    package = Path(arguments[0] if arguments else ROOT).resolve() / "src/mainspring"
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    for name, value, detail in measure(package, trees):
        print(f"{name:<52} {value:>7}  {detail}".rstrip())
    return 0


def measure(package: Path, trees: dict[Path, ast.Module]) -> Iterator[tuple[str, int, str]]:
    lines = {path: path.read_text("utf-8").count("\n") for path in trees}
    statements = [path.read_text("utf-8") for path in package.rglob("*.sql") if path.parent.name != "migrations"]
    stores = package / "stores" if (package / "stores").exists() else package / "adapters/store"
    yield "lines of Python", sum(lines.values()), ""
    yield "lines of SQL without migrations", sum(text.count("\n") for text in statements), ""
    yield "lines of the stores, Python and SQL, no migrations", _count_lines(stores), ""
    folders = Counter(path.parent for path in trees if path.name != "__init__.py")
    crowded = {folder: count for folder, count in folders.items() if count > LARGEST_FOLDER}
    yield f"folders with more than {LARGEST_FOLDER} files", len(crowded), _name(package, crowded)
    long = {path: count for path, count in lines.items() if count > LONGEST_FILE}
    yield f"files over {LONGEST_FILE} lines", len(long), _name(package, long)
    classes = list(_list_classes(trees))
    large = {name: count for name, count, _ in classes if count > MOST_METHODS}
    yield f"classes over {MOST_METHODS} methods", len(large), ", ".join(sorted(large))
    wide = {f"{name} {count}": count for name, count in _list_constructors(trees) if count > MOST_PARAMETERS}
    yield f"constructors over {MOST_PARAMETERS} parameters", len(wide), ", ".join(sorted(wide))
    postgres = {name: parents for name, _, parents in _list_classes(_below(stores / "postgres", trees))}
    yield "classes that PostgresStore inherits from", len(_ancestors("PostgresStore", postgres)), ""
    port_files = _below(package / "core/store.py", trees) | _below(package / "core/ports", trees)
    ports = list(_list_classes(port_files or _below(package / "ports", trees)))
    methods = {name: count for name, count, _ in ports}
    parts = {"Store", *_ancestors("Store", {name: parents for name, _, parents in ports})}
    yield "methods of the engine's store port", sum(methods[name] for name in parts), ""
    yield "highest positional SQL parameter", max(_list_parameters(statements), default=0), ""
    numbered = sum(len(re.findall(r"\bstate = \d", text)) for text in statements)
    yield "states written as numbers in SQL", numbered, ""
    migrations = [path for path in package.rglob("*.sql") if path.parent.name == "migrations"]
    yield "migrations, all stores", len(migrations), ""
    functions, files = count_functions_of_submit(package.parent)
    yield "functions of POST /v1/jobs before the store", functions, f"in {files} files"


def _below(place: Path, trees: dict[Path, ast.Module]) -> dict[Path, ast.Module]:
    return {path: tree for path, tree in trees.items() if path == place or place in path.parents}


def _count_lines(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".sql") and path.parent.name != "migrations"]
    return sum(path.read_text("utf-8").count("\n") for path in files)


def _list_classes(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, int, list[str]]]:
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
                yield node.name, methods, [base.id for base in node.bases if isinstance(base, ast.Name)]


def _list_constructors(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, int]]:
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                        yield node.name, len([*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]) - 1


def count_functions_of_submit(sources: Path) -> tuple[int, int]:
    command = [sys.executable, str(ROOT / "tools/request_path.py")]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    functions, _, _, files, _ = done.stdout.decode().splitlines()[-1].split()
    return int(functions), int(files)


def _ancestors(name: str, bases: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(bases.get(name, ()))
    while waiting:
        parent = waiting.pop()
        if parent in bases and parent not in found:
            found.add(parent)
            waiting += bases[parent]
    return found


def _list_parameters(statements: list[str]) -> Iterator[int]:
    for text in statements:
        yield from (int(number) for number in re.findall(r"\$(\d+)", text))


def _name(package: Path, found: dict[Path, int]) -> str:
    most = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{path.relative_to(package)} {count}" for path, count in most[:6])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
