"""The `image-captioning` pipeline."""

import transformers  # noqa: F401  registration follows this import; it must not meet a partly imported module
