"""Rules for the name of a new mechanism or task, which is also the name of its package."""

from __future__ import annotations

import keyword
import re
import unicodedata
from importlib.util import find_spec

from attn_zoo import registry
from attn_zoo.checks import check_name

_NAME = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")

_CLASS = re.compile("[A-Z][A-Za-z0-9]*")
_IN_TEMPLATES = frozenset(
    [
        *("Attention", "Batch", "Bool", "Capabilities", "Cost", "Examples", "Float", "Geometry", "Level", "Options", "Sequence"),
        *("Sequences", "Split", "Task", "TaskSpec", "Tensor", "Tokens", "SPLITS", "None", "True", "False"),
    ]
)
"""Names that the modules of the templates define or import, and constants of Python. A new class must have another name."""


def require_free_name(name: str) -> None:
    """Check that a name is valid for a package and not in use.

    Raises:
        ValueError: the name is invalid or in use. The message suggests a similar valid name, if there is one.
    """
    if not _NAME.fullmatch(name):
        near = re.sub("[^a-z0-9]+", "_", _ascii(name.casefold())).strip("_")
        advice = f". Write {near}" if _NAME.fullmatch(near) else ""
        raise ValueError(
            "the name must begin with a small letter, followed by small letters, digits and single underscores (ASCII), "
            f"because it names a Python package; got {name!r}{advice}"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"the name must not be a keyword of Python; got {name!r}. Choose another name")
    check_name("a plugin", name)
    for kind, names, card in (
        ("attention", registry.attentions(), registry.card),
        ("task", registry.task_names(), registry.task_card),
    ):
        if name in names:
            raise ValueError(
                f"the name {name!r} is already in use: it is the {kind} that {card(name).origin} registers. Choose another name"
            )
    if spec := find_spec(name):
        raise ValueError(
            f"the name {name!r} is already in use by an installed module ({spec.origin or 'a folder'}). Choose another name"
        )


def require_class_name(name: str) -> None:
    """Check that a name is valid for the class of a new mechanism or task.

    Raises:
        ValueError: the name is not in CapWords, or it has another meaning in the module of the class.
    """
    if not _CLASS.fullmatch(name):
        near = "".join(part[:1].upper() + part[1:] for part in re.split("[^A-Za-z0-9]+", _ascii(name)))
        advice = f". Write {near}" if _CLASS.fullmatch(near) and near not in _IN_TEMPLATES else ""
        raise ValueError(
            f"the name of a class must begin with a capital letter, followed by letters and digits (ASCII); got {name!r}{advice}"
        )
    if name in _IN_TEMPLATES:
        raise ValueError(
            f"the name of the class must not be {name!r}, because its module uses this name for something else. Choose another name"
        )


def _ascii(text: str) -> str:
    """Return a text without accents, such as ``grosse`` for ``größe``. Letters without an ASCII form stay."""
    plain = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    return "".join(sign for sign in plain if not unicodedata.combining(sign))
