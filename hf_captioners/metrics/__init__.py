"""hf_captioners.metrics."""
