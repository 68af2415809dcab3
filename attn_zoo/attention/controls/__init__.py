"""Controls: mechanisms that do not compete. They show what a task scores without attention."""

from attn_zoo.attention.controls import convolution as convolution
from attn_zoo.attention.controls import frozen_random as frozen_random
from attn_zoo.attention.controls import none as none
from attn_zoo.attention.controls import uniform as uniform
