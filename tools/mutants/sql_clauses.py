"""Edits that remove one clause of a SQL statement: locks, orders, limits, conflicts and conditions."""

from __future__ import annotations

from collections.abc import Iterator

from tools.mutants.mutant import Edit
from tools.mutants.sql_text import Token

_ENDS_OF_WHERE = {
    *("GROUP", "ORDER", "LIMIT", "FOR", "RETURNING", "UNION", "WINDOW", "HAVING", "EXCEPT", "INTERSECT", "OFFSET"),
    *("JOIN", "LEFT", "CROSS", "INNER", "WHERE", "DO", ";", ","),
}
_LOCKS = {"UPDATE", "SHARE", "NO", "KEY"}
#: A condition that names one of these protects against a writer that lost its lease.
_FENCES = {"fence", "epoch", "rev", "claim", "store_epoch"}


def find_clauses(statement: str, tokens: list[Token]) -> Iterator[Edit]:
    for index, token in enumerate(tokens):
        after = tokens[index + 1].upper if index + 1 < len(tokens) else ""
        if token.upper == "FOR" and after in _LOCKS:
            yield _remove(tokens, index, _find_end(tokens, index, {";", "UNION"}), "drop-lock")
        elif token.upper == "SKIP" and after == "LOCKED":
            yield _remove(tokens, index, index + 2, "drop-skip-locked")
        elif token.upper == "ORDER" and after == "BY" and _selects_rows(tokens, index):
            yield _remove(tokens, index, _find_end(tokens, index, {"LIMIT", "FOR", "OFFSET", ";"}), "drop-order")
        elif token.upper == "LIMIT":
            yield _remove(tokens, index, _find_end(tokens, index, {"FOR", "OFFSET", "UNION", ";"}), "drop-limit")
        elif token.upper == "ON" and after == "CONFLICT":
            yield _remove(tokens, index, _find_end(tokens, index, {"RETURNING", ";"}), "drop-conflict")
        elif token.upper == "OR" and after in ("IGNORE", "REPLACE") and tokens[index - 1].upper == "INSERT":
            yield _remove(tokens, index, index + 2, "drop-conflict")
        elif token.upper in ("WHERE", "HAVING") or (token.upper == "ON" and tokens[index - 1].upper != "DISTINCT"):
            yield from _drop_conditions(statement, tokens, index)


def _selects_rows(tokens: list[Token], index: int) -> bool:
    """Whether the order decides which rows are taken, or in which order they are locked."""
    end = _find_end(tokens, index, {"LIMIT", "FOR", ";"})
    return end < len(tokens) and tokens[end].upper in ("LIMIT", "FOR")


def _drop_conditions(statement: str, tokens: list[Token], start: int) -> Iterator[Edit]:
    """Make each condition of a conjunction true. It stays in the text, so that its parameters keep their types."""
    end = _find_end(tokens, start, _ENDS_OF_WHERE)
    depth = tokens[start].depth
    parts: list[list[Token]] = [[]]
    cases = betweens = 0
    for token in tokens[start + 1 : end]:
        if token.depth == depth and token.kind == "word":
            cases += (token.upper == "CASE") - (token.upper == "END")
            if token.upper == "BETWEEN":
                betweens += 1
            elif token.upper == "AND" and betweens:
                betweens -= 1
            elif token.upper == "AND" and not cases:
                parts.append([])
                continue
            elif token.upper == "OR" and not cases:
                return
        parts[-1].append(token)
    for part in parts:
        if part:
            first, last = part[0].start, part[-1].end
            words = {token.text for token in part}
            operator = "drop-fence" if words & _FENCES else "drop-condition"
            yield Edit(operator, first, last, f"({statement[first:last]} OR true)")


def _find_end(tokens: list[Token], start: int, ends: set[str]) -> int:
    """The place of the first of these words at the same depth, or of the parenthesis that closes around it."""
    depth = tokens[start].depth
    for index in range(start + 1, len(tokens)):
        token = tokens[index]
        if token.depth < depth or (token.depth == depth and token.upper in (*ends, "ON")):
            return index
    return len(tokens)


def _remove(tokens: list[Token], start: int, end: int, operator: str) -> Edit:
    return Edit(operator, tokens[start].start, tokens[end - 1].end, "")
