"""Models and configurations; every file here may be copied into a checkpoint."""

import transformers  # noqa: F401  registration follows this import and must not find a file of this folder half-read
