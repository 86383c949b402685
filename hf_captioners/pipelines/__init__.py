"""The `image-captioning` pipeline."""
