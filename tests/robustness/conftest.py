"""The parts of the command-line tests: images, models and a captioner, made by code."""

from tests.cli.conftest import captioner, detector, images, language_model, made, offline, scenes, vision_model  # noqa: F401
