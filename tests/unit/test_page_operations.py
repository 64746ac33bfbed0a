"""Pages call operations of other features by name. Every name is that of an operation."""

import ast
from collections.abc import Iterator
from pathlib import Path

import mainspring
from mainspring.config.resources import RESOURCES

FEATURES = Path(mainspring.__file__).parent / "features"
OPERATIONS = {operation.name for resource in RESOURCES for operation in resource.operations}


def list_named_operations() -> Iterator[tuple[str, str]]:
    """The file and the name of each operation that a page calls by name."""
    for path in FEATURES.rglob("*.py"):
        if "pages" not in path.relative_to(FEATURES).as_posix():
            # Commands ask for paths.
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "by_id")]
            for value in given if called in ("ask", "read_steadily") else ():
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield path.name, value.value


def test_every_operation_that_a_page_names_exists() -> None:
    named = list(list_named_operations())
    assert len(named) > 20
    assert [(file, name) for file, name in named if name not in OPERATIONS] == []


def test_operations_have_different_names() -> None:
    assert len(OPERATIONS) == sum(len(resource.operations) for resource in RESOURCES)
