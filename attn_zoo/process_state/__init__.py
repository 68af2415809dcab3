"""Settings and other state that PyTorch and Python keep for a whole process.

What a plugin changes is restored after its run, so that no result depends on the plugins that ran before.
"""

from attn_zoo.process_state.keeping import add_part, kept, sentence, unusual
from attn_zoo.process_state.part import Part
from attn_zoo.process_state.torch_parts import flushes_denormals

__all__ = ["Part", "add_part", "flushes_denormals", "kept", "sentence", "unusual"]
