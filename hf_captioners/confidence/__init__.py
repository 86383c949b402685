"""Confidence of captions and their words: calibrated probabilities that people would use the same words."""
