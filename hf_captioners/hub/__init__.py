"""Hugging Face Hub: pushing, model cards, code inside checkpoints, conversion of authors' checkpoints."""

import transformers  # noqa: F401  registration follows this import; it must not meet a partly imported module
