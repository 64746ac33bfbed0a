"""Mutants of Python files: edits of the text at places that ``ast`` finds.

Neither library that exists fits. cosmic-ray replaces each operator by every other one (56 pairs of comparisons, few of
them boundaries), numbers its mutants by their order in a file, and brings thirteen packages, among them aiohttp,
GitPython and SQLAlchemy. mutmut 3 writes all mutants of a function into one file of a ``mutants/`` tree, chooses tests
by function and not by line, and has no public function that returns single edits. The operators below are few, and
chosen for schedulers: boundaries, constants, conjunctions, arithmetic, minimum and maximum.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from tools.mutants.mutant import Edit, Mutant, Unit, build_mutants

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str, str]] = {
    ast.Lt: ("<", "<=", "compare"),
    ast.LtE: ("<=", "<", "compare"),
    ast.Gt: (">", ">=", "compare"),
    ast.GtE: (">=", ">", "compare"),
    ast.Eq: ("==", "!=", "compare"),
    ast.NotEq: ("!=", "==", "compare"),
    ast.Is: ("is", "is not", "identity"),
    ast.IsNot: ("is not", "is", "identity"),
    ast.In: ("in", "not in", "membership"),
    ast.NotIn: ("not in", "in", "membership"),
}
#: One more or less than a larger number is no boundary but a tuned size. For the same reason constants of modules and
#: classes keep their values: tests refer to them by name.
LARGEST_BOUNDARY = 1_000
_EXTREMES = {"min": "max", "max": "min"}
#: Text for people, and checks of types.
_LEFT_OUT = {"__repr__", "__str__", "describe", "explain"}


def list_mutants(file: str, text: str) -> Iterator[Mutant]:
    """``file``: relative to the repository."""
    return build_mutants(file, text, _Finder(text).find())


class _Finder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._tokens = [
            (self._starts[token.start[0] - 1] + token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
        ]

    def find(self) -> Iterator[tuple[Unit, Edit]]:
        yield from self._find_in_body(ast.parse(self._text).body, "")

    def _find_in_body(self, body: list[ast.stmt], prefix: str) -> Iterator[tuple[Unit, Edit]]:
        for statement in body:
            match statement:
                case ast.ClassDef():
                    yield from self._find_in_body(statement.body, f"{prefix}{statement.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    unit = Unit(f"{prefix}{statement.name}", _identify(statement))
                    if statement.name not in _LEFT_OUT:
                        yield from ((unit, edit) for edit in self._find_in_function(statement))
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    unit = Unit(f"{prefix}{name}", ast.dump(statement), is_constant=True)
                    if statement.value is not None:
                        edits = self._find_in_node(statement.value)
                        yield from ((unit, edit) for edit in edits if not edit.operator.startswith("constant"))
                case _:
                    pass

    def _find_in_function(self, function: _Function) -> Iterator[Edit]:
        for default in (*function.args.defaults, *function.args.kw_defaults):
            if default is not None:
                lines = (function.lineno, function.end_lineno or function.lineno)
                yield from (replace(edit, around=lines) for edit in self._find_in_node(default))
        for statement in function.body:
            yield from self._find_in_node(statement)

    def _find_in_node(self, node: ast.AST, statement: int = 0) -> Iterator[Edit]:
        """Depth first, in the order of the text. The places inside an f-string are not exact before Python 3.12."""
        if isinstance(node, ast.JoinedStr | ast.Assert):
            return
        if isinstance(node, ast.stmt):
            statement = node.lineno
        if isinstance(node, ast.expr | ast.stmt):
            yield from (replace(edit, around=(statement, node.lineno)) for edit in self._change(node))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._find_in_node(child, statement)

    def _change(self, node: ast.expr | ast.stmt) -> Iterator[Edit]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for index, operator in enumerate(node.ops):
                    old, new, kind = _COMPARISONS[type(operator)]
                    yield self._replace_between(operands[index], operands[index + 1], old, new, kind)
            case ast.BoolOp():
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield self._replace_between(left, right, old, new, "boolean")
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not (_is_text(node.left) or _is_text(node.right)):
                old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
                yield self._replace_between(node.left, node.right, old, new, "arithmetic")
            case ast.AugAssign(op=ast.Add() | ast.Sub()) if not _is_text(node.value):
                old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
                yield self._replace_between(node.target, node.value, old, new, "arithmetic")
            case ast.UnaryOp(op=ast.Not()):
                start = self._start(node)
                length = len("not") + (self._text[start + 3] == " ")
                yield Edit("not", start, start + length, "")
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                yield Edit("extreme", self._start(node.func), self._end(node.func), _EXTREMES[name])
            case ast.Return(value=ast.Constant(value=bool(value)) as constant):
                yield Edit("return", self._start(constant), self._end(constant), str(not value))
            case ast.Constant(value=int(value)) if not isinstance(value, bool) and value <= LARGEST_BOUNDARY:
                yield Edit("constant+1", self._start(node), self._end(node), str(value + 1))
                if value:
                    yield Edit("constant-1", self._start(node), self._end(node), str(value - 1))

    def _replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Edit:
        """Replace the operator between two operands; it may be two words."""
        first, *more = old.split()
        low, high = self._end(left), self._start(right)
        places = self._tokens[bisect_left(self._tokens, (low, "")) : bisect_left(self._tokens, (high, ""))]
        for index, (start, text) in enumerate(places):
            if text == first and (not more or places[index + 1][1] == more[0]):
                last_start, last_text = places[index + len(more)]
                return Edit(kind, start, last_start + len(last_text), new)
        raise AssertionError(f"{old!r} is not between {low} and {high}")

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """``ast`` counts columns in bytes."""
        text = self._lines[line - 1]
        return self._starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_text(left) or _is_text(right)
        case _:
            return False


def _identify(function: _Function) -> str:
    """The function without comments and docstring: wording does not change an id."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return ast.dump(function.args) + "".join(ast.dump(statement) for statement in body)
