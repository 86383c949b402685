"""Entry point of `python -m hf_captioners.cli`."""

import sys

from . import main

sys.exit(main())
