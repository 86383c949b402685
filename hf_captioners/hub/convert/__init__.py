"""Checkpoints of other programs as captioners of this library: one file an architecture."""
