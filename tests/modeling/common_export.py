"""Checks of captioners that are exported to ONNX and run by onnxruntime."""

import numpy as np
import pytest
import torch

from .common_case import WAYS_IN, CaptionerCase

LOGITS_TOLERANCE = 1e-4
OPTIONS = (
    {"num_beams": 1},
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 2, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 3, "min_new_tokens": 4, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
)


def without_padding(rows, end_ids) -> list[list[int]]:
    """Return the tokens of rows up to the first end token, which transformers pads with different ids."""
    ended = [np.isin(row, end_ids).cumsum() - np.isin(row, end_ids) == 0 for row in rows]
    return [row[kept].tolist() for row, kept in zip(rows, ended, strict=True)]


def assert_same_captions(model, captioner, inputs) -> None:
    """Assert that both decode the same tokens with the same log-probabilities, also of a prompt."""
    from hf_captioners.onnx.onnx_facts import GenerationOptions

    inputs = {name: inputs[name] for name in captioner.inputs}  # a graph has no boxes that a captioner does not need
    arrays = {name: values.numpy() for name, values in inputs.items()}
    images = len(next(iter(arrays.values())))
    start, word = model.config.decoder_start_token_id, 7
    for options in OPTIONS:
        for prompt in ([start], [start, word]):
            rows = torch.tensor([prompt] * images)
            expected = model.generate(**inputs, decoder_input_ids=rows, max_new_tokens=6, **options).numpy()
            expected = without_padding(expected[:, len(prompt) :], captioner.end_ids)
            settings = GenerationOptions(**{**captioner.facts["generation"], "max_new_tokens": 6} | options)
            found = captioner.generate(arrays, rows.numpy(), settings).tokens
            found = without_padding(found.reshape(-1, found.shape[-1]), captioner.end_ids)
            assert found == expected, (options, prompt)


class ExportChecks(CaptionerCase):
    """Exported captioners decode as the captioner does; see `tests/onnx` for the rest of the export."""

    @pytest.mark.slow
    @pytest.mark.parametrize("way_in", WAYS_IN)
    def test_exported_captioner(self, way_in, tmp_path):
        """Logits of steps, and captions: greedy, by beams, of one and three images."""
        from hf_captioners.onnx import OnnxCaptioner, export_captioner

        model = self.make_model(**({} if way_in == "pixels" else {"vision_config": None}))
        model.generation_config.suppress_tokens = [9]
        exported = export_captioner(model, tmp_path / "exported", self.make_processor())
        assert exported.largest_difference < LOGITS_TOLERANCE
        captioner = OnnxCaptioner(exported.folder)
        assert captioner.reads_images == (way_in == "pixels")
        for images in (3, 1):
            assert_same_captions(model, captioner, self.inputs(way_in, images=images))
