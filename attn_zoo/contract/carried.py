"""What is carried from one piece of a sequence to the next."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class CarriedState(Protocol):
    """All that later answers need of the tokens read so far: a frozen dataclass of whatever tensors a mechanism holds.

    No call writes into it, so that a sequence can go on from it in several ways.
    """

    @property
    def position(self) -> int:
        """How many tokens were read."""

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers that are carried, of the whole batch."""
