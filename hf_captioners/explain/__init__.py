"""Attention maps of captioners over image regions, as arrays and drawings."""

# What the maps of an explanation are: weights of the last attention, or these times the gradient of the word.
METHODS = ("attention", "relevance")
