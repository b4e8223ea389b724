"""``python -m prover`` is the command ``prover``."""

import sys

from prover.cli import main

sys.exit(main())
