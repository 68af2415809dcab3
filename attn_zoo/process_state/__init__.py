"""Settings and other state that PyTorch and Python keep for a whole process.

After each run, changes by plugins are undone, so that no result depends on the plugins of earlier runs.
"""

from attn_zoo.process_state.keeping import add_part, kept, sentence, unusual
from attn_zoo.process_state.part import Part
from attn_zoo.process_state.torch_parts import flushed_denormals, flushes_denormals

__all__ = ["Part", "add_part", "flushed_denormals", "flushes_denormals", "kept", "sentence", "unusual"]
