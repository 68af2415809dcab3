"""Dense attention: a weight for each pair of positions. The weights come from comparing queries and keys (softmax, entmax, top-k),
or from positions and single tokens (synthesizers).
"""

from attn_zoo.attention.dense import differential as differential
from attn_zoo.attention.dense import entmax as entmax
from attn_zoo.attention.dense import forgetting as forgetting
from attn_zoo.attention.dense import softmax as softmax
from attn_zoo.attention.dense import synthesizer_dense as synthesizer_dense
from attn_zoo.attention.dense import synthesizer_factorised as synthesizer_factorised
from attn_zoo.attention.dense import synthesizer_random as synthesizer_random
from attn_zoo.attention.dense import topk as topk
