"""Recipes of published tables, and what runs them."""
