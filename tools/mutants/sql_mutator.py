"""Mutants of SQL files: operators, constants and removed clauses, found by tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.mutants.mutant import Edit, Mutant, Unit, build_mutants
from tools.mutants.paths import STORES
from tools.mutants.python_mutator import LARGEST_BOUNDARY
from tools.mutants.sql_clauses import find_clauses
from tools.mutants.sql_text import SqlUnit, Token, list_units, tokenize

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "!=": "="}
_CALLS = {"GREATEST": "least", "LEAST": "greatest", "MIN": "max", "MAX": "min"}
_ENDS_OF_SET = {"FROM", "WHERE", "RETURNING", ";"}


def list_mutants(file: str, text: str) -> Iterator[Mutant]:
    """``file``: relative to the repository."""

    def find() -> Iterator[tuple[Unit, Edit]]:
        for part in list_units(file.removeprefix(f"{STORES}/"), text):
            unit = Unit(part.name, _identify(part), part.key)
            for edit in list_edits(part.text):
                yield unit, Edit(edit.operator, part.start + edit.start, part.start + edit.end, edit.new)

    return build_mutants(file, text, find())


def list_edits(statement: str) -> list[Edit]:
    """All edits of one statement, in the order of their places."""
    tokens = tokenize(statement)
    edits = list(_find_in_tokens(tokens)) + list(find_clauses(statement, tokens))
    return sorted(edits, key=lambda edit: (edit.start, edit.end, edit.operator))


def _identify(unit: SqlUnit) -> str:
    return " ".join(token.text for token in tokenize(unit.text))


def _find_in_tokens(tokens: list[Token]) -> Iterator[Edit]:
    assignments = _find_assignments(tokens)
    betweens: list[int] = []
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None

        def replace(operator: str, new: str, token: Token = token) -> Edit:
            return Edit(operator, token.start, token.end, new)

        if token.kind == "operator":
            if token.text in _COMPARISONS and index not in assignments:
                yield replace("compare", _COMPARISONS[token.text])
            elif token.text in ("+", "-") and before is not None and _is_operand(before):
                yield replace("arithmetic", "-" if token.text == "+" else "+")
        elif token.kind == "number":
            yield from _change_number(tokens, index, replace)
        elif token.upper == "BETWEEN":
            betweens.append(token.depth)
        elif token.upper == "AND" and betweens and betweens[-1] == token.depth:
            betweens.pop()
        elif token.upper in ("AND", "OR") and before is not None and before.upper != "INSERT":
            yield replace("boolean", "OR" if token.upper == "AND" else "AND")
        elif token.upper == "NOT" and before is not None and after is not None:
            yield from _drop_not(token, before, after)
        elif token.upper == "IS" and after is not None and after.upper == "NULL":
            yield replace("null", "IS NOT")
        elif token.upper in _CALLS and after is not None and after.text == "(":
            yield replace("extreme", _CALLS[token.upper])


def _change_number(tokens: list[Token], index: int, replace: Callable[[str, str], Edit]) -> Iterator[Edit]:
    """Constants plus and minus one, except positions in JSON arrays and the 1 of ``EXISTS (SELECT 1 …)``."""
    token = tokens[index]
    before = tokens[index - 1].upper if index else ""
    is_probe = before == "SELECT" and index > 2 and tokens[index - 3].upper == "EXISTS"
    is_boundary = token.text.isdigit() and int(token.text) <= LARGEST_BOUNDARY
    if is_boundary and before not in ("->", "->>", "BY") and not is_probe:
        yield replace("constant+1", str(int(token.text) + 1))
        if token.text != "0":
            yield replace("constant-1", str(int(token.text) - 1))


def _drop_not(token: Token, before: Token, after: Token) -> Iterator[Edit]:
    if before.upper == "IS":
        yield Edit("null", token.start, after.start, "")
    elif before.upper not in ("IF", "AS", "DO") and after.upper not in ("NULL", "MATERIALIZED"):
        yield Edit("not", token.start, after.start, "")


def _is_operand(token: Token) -> bool:
    return token.kind in ("word", "number", "parameter") or token.text in (")", "]")


def _find_assignments(tokens: list[Token]) -> set[int]:
    """The places of the ``=`` that assign in a SET clause."""
    found: set[int] = set()
    for start, token in enumerate(tokens):
        if token.upper != "SET":
            continue
        is_due = True
        for index in range(start + 1, len(tokens)):
            inner = tokens[index]
            if inner.depth < token.depth or (inner.depth == token.depth and inner.upper in _ENDS_OF_SET):
                break
            if inner.depth > token.depth:
                continue
            if inner.text == "=" and is_due:
                found.add(index)
                is_due = False
            is_due = is_due or inner.text == ","
    return found
