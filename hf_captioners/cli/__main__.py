"""`python -m hf_captioners.cli`: the command line without its script."""

import sys

from . import main

sys.exit(main())
