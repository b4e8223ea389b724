"""``python -m bigmem`` is the command ``bigmem``."""

import sys

from bigmem.cli import main

sys.exit(main())
