"""Run the command line with ``python -m dasp``."""

import sys

from dasp.cli import main

sys.exit(main())
