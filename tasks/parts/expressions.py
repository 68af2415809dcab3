"""The symbols of ListOps and the value of an expression of them."""

from __future__ import annotations

from collections.abc import Iterable

PADDING = "_"
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
VOCABULARY = (PADDING, *map(str, range(10)), *OPERATORS, CLOSE)
"""Token ids are places in this list. An operator holds its opening bracket; the closing one stands alone."""

DIGIT_IDS = {value: VOCABULARY.index(str(value)) for value in range(10)}
OPEN_IDS = {operator: VOCABULARY.index(operator) for operator in OPERATORS}
CLOSE_ID = VOCABULARY.index(CLOSE)


def evaluate(operator: str, values: list[int]) -> int:
    """Value of one list whose arguments are evaluated already."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def value_of(ids: Iterable[int]) -> int:
    """Value of a whole expression, given as token ids without padding.

    Raises:
        ValueError: it is none; the message says what is wrong with it.
    """
    operator, values = -1, list[int]()  # of the list that is open; outside of all lists there is one value to come
    outer: list[tuple[int, list[int]]] = []
    for token in ids:
        if token < OPEN_IDS["[MIN"]:
            values.append(token - 1)
        elif token != CLOSE_ID:
            outer.append((operator, values))
            operator, values = token, []
        elif not outer:
            raise ValueError("a bracket closes that none opened")
        elif not values:
            raise ValueError("a list has no arguments")
        else:
            value = evaluate(VOCABULARY[operator], values)
            operator, values = outer.pop()
            values.append(value)
    if outer:
        raise ValueError(f"{len(outer)} brackets are open at its end")
    if len(values) != 1:
        raise ValueError(f"it is {len(values)} expressions, not one")
    return values[0]
