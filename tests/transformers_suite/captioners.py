"""Test classes of transformers' common suite for every captioner, with pixels and with regions.

Collected by `make test-transformers` only, which puts the package `transformers_tests` on the path, see
`distribution.py`. `not_applicable.py` names the tests that do not apply to captioners.
"""

import copy
import unittest
import unittest.mock
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from transformers.models.auto import modeling_auto
from transformers_tests import test_image_processing_common
from transformers_tests.generation.test_utils import GenerationTesterMixin
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_image_processing_common import ImageProcessingTester, ImageProcessingTestMixin
from transformers_tests.test_modeling_common import ModelTesterMixin
from transformers_tests.test_processing_common import ProcessorTesterMixin
from transformers_tests.test_training_mixin import TrainingTesterMixin

from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.processing.image_processing_captioning import (
    CaptioningImageProcessor,
    CaptioningImageProcessorFast,
)
from tests.hub.captioner_cases import case_of
from tests.modeling.common_case import FEATURE_SIZE, IMAGES, REGIONS, TOKENS, WAYS_IN

PHOTO = Path(__file__).resolve().parents[2] / "docs" / "photo.jpg"
GRID = 4  # regions of a tiny image
IMAGES_OF_SDPA = 7  # images of a batch in the comparison of eager and sdpa attention
GRIDS = {"image_transformer": 1 + 4 + 16}
WITHOUT_ENCODER_ATTENTION = ("show_attend_tell",)


class CaptionerTester:
    """Configuration and inputs of a tiny captioner, in the form that transformers' tests read.

    Args:
        name: of the architecture.
        way_in: `"pixels"` or `"regions"`.
    """

    is_training = True
    batch_size = IMAGES
    seq_length = decoder_seq_length = TOKENS
    num_attention_heads = 2
    # Whether the inputs have tokens of an encoder, which captioners do not read.
    has_input_ids = False

    # Images of a batch; a test that needs more would draw regions without order, and masks without a region.
    images = IMAGES

    def __init__(self, name: str, way_in: str) -> None:
        self.case, self.way_in = case_of(name), way_in
        config = self.get_config()
        regions = GRIDS.get(name, GRID) if way_in == "pixels" else REGIONS
        self.encoder_seq_length, self.key_length = regions, regions + self.case.encoder_slots
        self.hidden_size = config.hidden_size
        self.num_hidden_layers = 2

    def get_config(self) -> Any:
        """Return a tiny configuration."""
        vision = copy.deepcopy(self.case.vision) if self.way_in == "pixels" else None
        return self.case.make_config(
            vision_config=vision, region_feature_size=FEATURE_SIZE, freeze_vision=vision is None
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        """Return a configuration, and images or regions with captions."""
        config = self.get_config()
        captions = self.case.captions(unittest.mock.Mock(config=config), rows=self.images)
        also = {"input_ids": captions.clone()} if self.has_input_ids else {}
        return config, {**self.case.inputs(self.way_in, images=self.images), "decoder_input_ids": captions, **also}


class ModelSuite(ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin):
    """Models of an architecture; a subclass sets `architecture` and `way_in`."""

    architecture: str
    way_in: str
    is_encoder_decoder = True
    _is_composite = True
    model_tester = None

    def setUp(self) -> None:
        """Make the tester and the classes."""
        self.model_tester = CaptionerTester(self.architecture, self.way_in)
        row = ARCHITECTURES[self.architecture]
        self.all_model_classes = (row.load("Model"), row.load("ForConditionalGeneration"))
        self.has_attentions = self.architecture not in WITHOUT_ENCODER_ATTENTION
        self.test_all_params_have_gradient = self.way_in == "regions"  # regions do not depend on the pooler of a ViT
        if self.way_in == "regions" and "matches_sdpa" in self._testMethodName:  # it reads the main input of a class
            self.model_tester.images = IMAGES_OF_SDPA
            self.additional_model_inputs = ["region_boxes", "region_mask"]
            for model_class in self.all_model_classes:
                patch = unittest.mock.patch.object(model_class, "main_input_name", "region_features")
                patch.start()
                self.addCleanup(patch.stop)
        fields = {"region_feature_size": FEATURE_SIZE} if self.way_in == "pixels" else {}
        self.config_tester = ConfigTester(self, row.load("Config"), common_properties=["hidden_size"], **fields)

    def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
        """Add labels of captions to the inputs."""
        inputs = super()._prepare_for_class(inputs_dict, model_class)
        inputs.pop("input_ids", None)
        if return_labels and model_class.can_generate():
            inputs["labels"] = self.model_tester.case.labels(unittest.mock.Mock(config=self.model_tester.get_config()))
        return inputs

    @contextmanager
    def tokens_of_an_encoder(self) -> Iterator[None]:
        """Let the inputs have `input_ids`, which the tests of embeddings change before the model is called."""
        self.model_tester.has_input_ids = True
        yield
        self.model_tester.has_input_ids = False

    def test_resize_tokens_embeddings(self) -> None:
        """Run the test of the suite."""
        with self.tokens_of_an_encoder():
            super().test_resize_tokens_embeddings()

    def test_resize_embeddings_untied(self) -> None:
        """Run the test of the suite."""
        with self.tokens_of_an_encoder():
            super().test_resize_embeddings_untied()

    def test_config(self) -> None:
        """Run the tests of configurations."""
        self.config_tester.run_common_tests()


class ProcessorSuite(ProcessorTesterMixin):
    """Processor of an architecture; a subclass sets `architecture` and `processor_class`."""

    architecture: str
    text_input_name = "decoder_input_ids"

    @classmethod
    def _setup_from_components(cls) -> Any:
        return case_of(cls.architecture).make_processor()

    @classmethod
    def prepare_processor_dict(cls) -> dict[str, Any]:
        """Return what a processor is built with beside its parts."""
        processor = case_of(cls.architecture).make_processor()
        settings = {name: getattr(processor, name) for name in ("declared_inputs", "requires_region_boxes")}
        return {name: value for name, value in settings.items() if value}


class CaptioningImageProcessingTester(ImageProcessingTester):
    """Settings of the image processors that all captioners share."""

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        kwargs.setdefault("size", {"height": 18, "width": 18})
        kwargs.setdefault("do_normalize", True)
        super().__init__(parent, **kwargs)

    def _get_image_processing_classes(self) -> dict[str, Any]:
        return {"pil": CaptioningImageProcessor, "torchvision": CaptioningImageProcessorFast}


class TestImageProcessor(ImageProcessingTestMixin, unittest.TestCase):
    """Image processors that all captioners share."""

    image_processor_tester_class = CaptioningImageProcessingTester

    @classmethod
    def setUpClass(cls) -> None:
        """Read a photograph of this repository in place of one from the Hub."""
        super().setUpClass()
        test_image_processing_common.load_test_image = lambda url: Image.open(PHOTO).convert("RGB")


def add_classes() -> None:
    """Add the test classes of every architecture to this module."""
    for name, row in ARCHITECTURES.items():
        if row.package is not None:
            continue
        # The suite takes from these tables which classes have a loss.
        modeling_auto.MODEL_MAPPING_NAMES[row.model_type] = row.load("Model").__name__
        for way_in in WAYS_IN:
            title = f"Test_{name}_{way_in}"
            members = {"architecture": name, "way_in": way_in, "__module__": __name__}
            globals()[title] = type(title, (ModelSuite, unittest.TestCase), members)
        title = f"Test_{name}_processor"
        members = {"architecture": name, "processor_class": row.load("Processor"), "__module__": __name__}
        globals()[title] = type(title, (ProcessorSuite, unittest.TestCase), members)


add_classes()
