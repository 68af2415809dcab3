"""The command ``attn-zoo`` as a module: ``python -m attn_zoo.cli``."""

import sys

from attn_zoo.cli.main import main

sys.argv[0] = "attn-zoo"  # records store it as the command
sys.exit(main())
