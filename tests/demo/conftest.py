"""Fixtures: scenes and captioner from the tests of the command line."""

from tests.cli.conftest import captioner, language_model, offline, scenes, vision_model  # noqa: F401
