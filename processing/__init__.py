"""Processors and tokenizers of captioners; every file here may be copied into a checkpoint."""
