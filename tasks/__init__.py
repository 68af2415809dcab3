"""Tasks of the zoo: a plugin, registered through the same entry point as the plugins of others."""

from . import causal_language as causal_language
from . import cifar10 as cifar10
from . import cifar100 as cifar100
from . import copying as copying
from . import digits as digits
from . import fashion_mnist as fashion_mnist
from . import flip_flop as flip_flop
from . import fuzzy_recall as fuzzy_recall
from . import haystack as haystack
from . import image_arrays as image_arrays
from . import image_folder as image_folder
from . import induction as induction
from . import listops as listops
from . import masked_language as masked_language
from . import memorise as memorise
from . import mnist as mnist
from . import mosaic as mosaic
from . import mqar as mqar
from . import needle as needle
from . import pathfinder as pathfinder
from . import pixels as pixels
from . import retrieval as retrieval
from . import selective as selective
from . import sentences as sentences
from . import state_words as state_words
from . import text as text
