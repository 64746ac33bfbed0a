"""SQL statements with named parameters and constants."""

import ast
from importlib.resources import files as files_of
from pathlib import Path

import pytest

from mainspring.stores import postgres
from mainspring.stores.postgres.database import PACKAGE, load_statements
from mainspring.stores.statements import Statement, insert_constants


def test_numbers_each_parameter_once_in_the_order_of_first_use() -> None:
    statement = Statement("SELECT :now::bigint, id FROM run WHERE id = ANY (:ids::uuid[]) AND due < :now")
    assert statement.text == "SELECT $1::bigint, id FROM run WHERE id = ANY ($2::uuid[]) AND due < $1"
    assert statement.bind(ids=["a"], now=7) == (statement.text, 7, ["a"])


@pytest.mark.parametrize("values", [{"now": 1}, {"now": 1, "ids": [], "limit": 2}, {"now": 1, "id": []}])
def test_rejects_missing_and_unknown_parameters(values: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        Statement("SELECT :now, :ids").bind(**values)


def test_inserts_constants_as_literals() -> None:
    text = "SELECT state::smallint FROM run WHERE state = :RUNNING AND id = :run"
    assert insert_constants(text, {"RUNNING": 4}) == "SELECT state::smallint FROM run WHERE state = 4 AND id = :run"


def test_rejects_an_unknown_constant() -> None:
    with pytest.raises(KeyError):
        insert_constants("SELECT :RUNING", {"RUNNING": 4})


def test_calls_of_the_postgres_store_name_the_parameters_of_their_statements() -> None:
    files = {file.name.removesuffix(".sql") for file in files_of(PACKAGE).joinpath("queries").iterdir()}
    # The statements of the health checks have names of their own.
    of_health, of_store = (
        load_statements("mainspring", ("health",)),
        load_statements("mainspring", tuple(files - {"health"})),
    )
    used: set[str] = set()
    wrong = []
    for path in sorted(Path(postgres.__file__).parent.rglob("*.py")):
        statements = of_health if path.name == "health.py" else of_store
        for call in ast.walk(ast.parse(path.read_text())):
            found = _find_statement(call)
            if found is None:
                continue
            name, keywords = found
            used.add(name)
            named = {keyword.arg for keyword in keywords if keyword.arg != "timeout"}
            expected = set(statements[name].parameters)
            # A call that passes a mapping names only some of them.
            if named - {None} - expected or (None not in named and named != expected):
                wrong.append(f"{path.name}:{call.lineno} {name}: {named ^ expected}")  # type: ignore[attr-defined]
    assert wrong == []
    assert len(used) > 300


def _find_statement(call: ast.AST) -> tuple[str, list[ast.keyword]] | None:
    """Return the name of the statement that a call binds, and the parameters given."""
    match call:
        case ast.Call(func=ast.Attribute(attr="bind", value=ast.Subscript(slice=ast.Constant(value=str(name))))):
            return name, call.keywords
        case ast.Call(
            func=ast.Attribute(attr="fetch" | "execute", value=ast.Attribute(attr="_db" | "_database")),
            args=[ast.Constant(value=str(name))],
        ):
            return name, call.keywords
        case _:
            return None
