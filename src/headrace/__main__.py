"""``python -m headrace``: the same as the command ``headrace``."""

import sys

from headrace.cli.main import main

sys.exit(main())
