"""Linear attention: sums over keys, or a memory that every token updates, replace the n × n weights."""

from attn_zoo.attention.linear import based as based
from attn_zoo.attention.linear import cosformer as cosformer
from attn_zoo.attention.linear import delta_product as delta_product
from attn_zoo.attention.linear import delta_rule as delta_rule
from attn_zoo.attention.linear import gated_delta_rule as gated_delta_rule
from attn_zoo.attention.linear import gated_linear as gated_linear
from attn_zoo.attention.linear import gated_slot as gated_slot
from attn_zoo.attention.linear import kda as kda
from attn_zoo.attention.linear import linear as linear
from attn_zoo.attention.linear import log_linear as log_linear
from attn_zoo.attention.linear import performer as performer
from attn_zoo.attention.linear import retention as retention
from attn_zoo.attention.linear import rwkv7 as rwkv7
from attn_zoo.attention.linear import ssd as ssd
