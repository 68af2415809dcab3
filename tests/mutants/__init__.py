"""Mutants: broken attentions, at least one for each check of the kit; several are defects of published packages.

Each module holds the mutants of one part of the kit; importing it enters them in ``MUTANTS``. ``mutants.tasks`` holds broken tasks.
"""

from mutants import (
    agreement,
    batch,
    card,
    causality,
    cost,
    gradients,
    mistakes,
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
    written,
)
from mutants.entering import MUTANTS, Mutant, breaks, plant
from mutants.originals import ORIGINALS

PARTS = (
    *(card, agreement, causality, padding, stepwise, batch, promises, state, written),
    *(modes, gradients, numerics, cost, sizes, mistakes),
)
"""Modules of mutants, in the order of the kit's parts."""
DRAWN = (stranger, stranger_places, stranger_linear, stranger_trained)
"""Modules of mutants devised without knowledge of the kit."""

__all__ = ["DRAWN", "MUTANTS", "ORIGINALS", "PARTS", "Mutant", "breaks", "plant"]
