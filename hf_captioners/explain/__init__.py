"""Attention of a captioner over regions, as arrays and as drawings."""

# What the maps of an explanation are: weights of the last attention, or these times the gradient of the word.
METHODS = ("attention", "relevance")
