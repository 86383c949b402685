"""Conversion of authors' checkpoints to captioners of this library: one file per architecture."""
