"""Checkpoints: what travels with them, and key maps of older code."""

import transformers  # noqa: F401  registration follows this import and must not find a file of this folder half-read
