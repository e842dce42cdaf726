"""`python -m benchmarks.bench`."""

import sys

from benchmarks.bench.command import main

sys.exit(main())
