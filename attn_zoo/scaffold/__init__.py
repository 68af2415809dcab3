"""Templates of plugin packages: a mechanism or a task with its tests, which can be installed, checked and run as it is."""

from attn_zoo.scaffold.names import require_free_name
from attn_zoo.scaffold.package import Kind, write_package

__all__ = ["Kind", "require_free_name", "write_package"]
