"""Run the command line with ``python -m dasp``."""

import sys

from dasp.cli.main import main

sys.exit(main())
