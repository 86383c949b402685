"""hf_captioners.hub."""
