"""Controls: mechanisms that cannot select tokens by content. They show what a task yields without attention, and are not ranked."""

from attn_zoo.attention.controls import convolution as convolution
from attn_zoo.attention.controls import frozen_random as frozen_random
from attn_zoo.attention.controls import none as none
from attn_zoo.attention.controls import uniform as uniform
