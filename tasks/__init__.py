"""The first plugin: the zoo's own tasks, registered through the same door as a stranger's."""

from . import cifar10 as cifar10
from . import digits as digits
from . import listops as listops
from . import mnist as mnist
from . import pixels as pixels
from . import text as text
