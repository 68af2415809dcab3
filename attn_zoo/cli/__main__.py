"""``python -m attn_zoo.cli``, for launchers that start a module in several processes."""

import sys

from attn_zoo.cli.main import main

sys.argv[0] = "attn-zoo"  # records store it as the command
sys.exit(main())
