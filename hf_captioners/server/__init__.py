"""Captions over HTTP: requests that arrive together are captioned in batches."""
