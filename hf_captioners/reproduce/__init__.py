"""Recipes of published tables: reading, running, resuming and comparing them."""
