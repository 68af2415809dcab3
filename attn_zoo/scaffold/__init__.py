"""Templates of plugin packages. A package has a mechanism or a task, with tests. It can be installed, checked and run as it is
written."""

from attn_zoo.scaffold.names import require_free_name
from attn_zoo.scaffold.package import Kind, write_package

__all__ = ["Kind", "require_free_name", "write_package"]
