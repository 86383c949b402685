"""The version, in a file of its own so that building needs no import."""

__version__ = "0.1.0.dev0"
