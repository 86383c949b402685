"""A processor of image processor and tokenizer is called as those of transformers."""

import PIL.Image
import pytest
import torch
from transformers import BlipImageProcessor

from hf_captioners.image_text_processor import ImageTextProcessor
from hf_captioners.interfaces import Processor
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_captioning import CaptioningProcessor
from hf_captioners.processing.word_tokenizer import word_tokenizer


def test_images_and_texts():
    images = BlipImageProcessor(size={"height": 8, "width": 8})
    tokenizer = word_tokenizer(["a", "dog", "hot"])
    processor = ImageTextProcessor(images, tokenizer)
    photograph = PIL.Image.new("RGB", (9, 7), "red")
    batch = processor(images=[photograph], return_tensors="pt")
    assert torch.equal(batch["pixel_values"], images([photograph], return_tensors="pt")["pixel_values"])
    batch = processor([photograph] * 2, ["a dog", "a hot dog"], return_tensors="pt", padding=True)
    assert batch["pixel_values"].shape == (2, 3, 8, 8) and batch["input_ids"].shape[0] == 2
    assert processor.batch_decode(batch["input_ids"], skip_special_tokens=True) == ["a dog", "a hot dog"]
    assert processor.decode(batch["input_ids"][0], skip_special_tokens=True) == "a dog"
    with pytest.raises(ValueError, match="`images` and `text` are missing"):
        processor()


def test_processors_are_of_one_type():
    """Both kinds that `load_captioner` returns for small captioners have what `Processor` promises."""
    tokenizer = word_tokenizer(["a", "dog"])
    images = CaptioningImageProcessor(size={"height": 8, "width": 8})
    assert isinstance(CaptioningProcessor(images, tokenizer), Processor)
    assert isinstance(ImageTextProcessor(images, tokenizer), Processor)
    assert not isinstance(tokenizer, Processor)
