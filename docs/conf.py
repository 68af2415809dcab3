"""Sphinx's settings for the site: Markdown pages, pages made from cards and results, the reference made from docstrings."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the extension zoo_pages
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # for tables of measurements that programs there make

project = "attn-zoo"
version = release = importlib.metadata.version("attn-zoo")
language = "en"
smartquotes_action = "D"  # dashes, but no quotes: K' is a name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "zoo_pages"]
exclude_patterns = ["_build", "generated/board.md", "generated/finding.md"]  # the latter are parts of pages

# Markdown: fences of colons around asides, links to headings, attributes of pictures.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Every reference to something of the zoo must lead somewhere. Those to other libraries have no target: the site is built without
# a network, so that no inventory of theirs is at hand.
nitpicky = True
_OUTSIDE = (
    r"(torch|nn|jaxtyping|numpy|np|polars|transformers|timm|accelerate|optuna|collections|contextlib|pathlib|enum|abc|typing)"
)
nitpick_ignore_regex = [
    (r"py:.*", rf"{_OUTSIDE}(\..*)?"),
    (r"py:.*", r"(Tensor|Module|Generator|Any|Callable|Path|Enum|ABC|Literal|ClassVar|Self|Iterator|Iterable|device|dtype)"),
    (r"py:.*", r"(Mapping|Sequence|Collection|NamedTuple|Generic|type|optional|None|ellipsis|function)"),
    (r"py:.*", r"(Float|Int|Bool)"),
    (r"py:.*", r"(Inputs|Labels)"),  # aliases of unions of tensors
]

html_theme = "furo"
html_title = f"attn-zoo {release}"
html_static_path = ["_static"]
html_css_files = ["zoo.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
