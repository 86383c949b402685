"""Processors; every file here may travel inside a checkpoint."""
