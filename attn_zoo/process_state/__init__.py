"""State of the process that PyTorch and Python keep. What a plugin changes is restored, so that no row depends on another."""

from attn_zoo.process_state.keeping import add_part, kept, sentence, unusual
from attn_zoo.process_state.part import Part
from attn_zoo.process_state.torch_parts import flushes_denormals

__all__ = ["Part", "add_part", "flushes_denormals", "kept", "sentence", "unusual"]
