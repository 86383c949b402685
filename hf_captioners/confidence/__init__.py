"""Confidence of captions and words: calibrated probabilities that people would use the same words."""
