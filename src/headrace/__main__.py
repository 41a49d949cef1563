"""Entry point of ``python -m headrace``, equivalent to the ``headrace`` command."""

import sys

from headrace.cli.main import main

sys.exit(main())
