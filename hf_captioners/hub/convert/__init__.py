"""Conversion of the authors' checkpoints into captioners of this library: one file per architecture."""
