"""Recipes of published tables: loading, running, resuming, and comparison with the published metrics."""
