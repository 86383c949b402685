"""The images, parts and captioner of the tests of the command line."""

from tests.cli.conftest import captioner, detector, images, language_model, offline, scenes, vision_model  # noqa: F401
from tests.onnx.conftest import exported, source  # noqa: F401
