"""Broken attentions, at least one for each check of the kit; several are defects that published packages really have.

Each module holds those of one part of the kit, and importing it enters them in ``MUTANTS``. ``mutants.tasks`` has the tasks.
"""

from mutants import (
    agreement,
    batch,
    card,
    causality,
    cost,
    gradients,
    modes,
    numerics,
    padding,
    promises,
    sizes,
    state,
    stepwise,
    stranger,
    stranger_linear,
    stranger_places,
    stranger_trained,
)
from mutants.entering import MUTANTS, Mutant, breaks, plant
from mutants.originals import ORIGINALS

PARTS = (card, agreement, causality, padding, stepwise, batch, promises, state, modes, gradients, numerics, cost, sizes)
"""Modules of mutants, in the order of the kit's parts."""
DRAWN = (stranger, stranger_places, stranger_linear, stranger_trained)
"""Modules of mutants drawn by somebody who had not read the kit."""

__all__ = ["DRAWN", "MUTANTS", "ORIGINALS", "PARTS", "Mutant", "breaks", "plant"]
