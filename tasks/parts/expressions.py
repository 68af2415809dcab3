"""Symbols of the task ListOps, and evaluation of its expressions."""

from __future__ import annotations

from collections.abc import Iterable

PADDING = "_"
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
VOCABULARY = (PADDING, *map(str, range(10)), *OPERATORS, CLOSE)
"""Symbols; the token id of a symbol is its index here. An opening bracket and its operator are one symbol; a closing bracket is a
symbol of its own."""

DIGIT_IDS = {value: VOCABULARY.index(str(value)) for value in range(10)}
OPEN_IDS = {operator: VOCABULARY.index(operator) for operator in OPERATORS}
CLOSE_ID = VOCABULARY.index(CLOSE)


def evaluate(operator: str, values: list[int]) -> int:
    """Return the value of a list: the operator applied to the values of its arguments."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def value_of(ids: Iterable[int]) -> int:
    """Return the value of a whole expression.

    Args:
        ids: token ids of the expression, without padding.

    Raises:
        ValueError: the tokens are not an expression.
    """
    operator, values = -1, list[int]()  # of the innermost open list; outside of all lists exactly one value is expected
    outer: list[tuple[int, list[int]]] = []
    for token in ids:
        if token < OPEN_IDS["[MIN"]:
            values.append(token - 1)
        elif token != CLOSE_ID:
            outer.append((operator, values))
            operator, values = token, []
        elif not outer:
            raise ValueError("every closing bracket must have an opening bracket, but one of them has none")
        elif not values:
            raise ValueError("every list must have at least one argument, but one list has none")
        else:
            value = evaluate(VOCABULARY[operator], values)
            operator, values = outer.pop()
            values.append(value)
    if outer:
        raise ValueError(f"every bracket must be closed, but {len(outer)} are open at the end")
    if len(values) != 1:
        raise ValueError(f"the text must be one expression; got {len(values)} expressions")
    return values[0]
