"""hf_captioners.training."""
