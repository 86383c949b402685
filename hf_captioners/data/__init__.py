"""hf_captioners.data."""
