"""Fixtures: captioner and images from the tests of the command line."""

from tests.cli.conftest import captioner, images, language_model, offline, scenes, vision_model  # noqa: F401
