"""The bilinear captioner: the common checks, and its equations."""

from typing import ClassVar

import torch

from hf_captioners import BilinearConfig, BilinearProcessor
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

from .common import CaptionerChecks
from .common_case import CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer


class BilinearCase(CaptionerCase):
    """A tiny bilinear captioner with a vocabulary of words."""

    joined_parts: ClassVar = {f"model.decoder.layer.gru.{kind}_projection.weight": 3 for kind in ("word", "hidden")}

    def make_config(self, **fields):
        return BilinearConfig(**{"vocab_size": VOCABULARY, "hidden_size": 16, "dropout": 0.0} | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return BilinearProcessor.for_config(self.make_config(), images, tiny_word_tokenizer())

    def make_cache(self):
        return RecurrentCache()


class TestBilinear(BilinearCase, CaptionerChecks):
    """The common checks, and the equations."""

    def test_equations(self, model):
        """States as `nn.GRU`, weights softmax(h^T W r), and the gate sigma(u^T h) on the attended vector."""
        encoder, decoder = model.model.encoder, model.model.decoder
        inputs, captions = self.inputs("regions"), self.captions(model)
        with torch.no_grad():
            outputs = model(**inputs, decoder_input_ids=captions, output_attentions=True, output_gates=True)
            gru, cell = torch.nn.GRU(16, 16, batch_first=True), decoder.layer.gru
            gru.weight_ih_l0.copy_(cell.word_projection.weight)
            gru.bias_ih_l0.copy_(cell.word_projection.bias)
            gru.weight_hh_l0.copy_(cell.hidden_projection.weight)
            gru.bias_hh_l0.copy_(cell.hidden_projection.bias)
            states = gru(decoder.token_embedding(captions))[0]
            regions = encoder.projection(inputs["region_features"]).tanh()
            scores = torch.einsum("btd,de,bre->btr", states, encoder.keys.weight, regions)
            weights = scores.masked_fill(~inputs["region_mask"][:, None], -torch.inf).softmax(-1)
            gate = (states @ decoder.layer.gate.weight[0]).sigmoid()
            read = torch.cat((states, gate[..., None] * (weights @ regions)), dim=-1)
            logits = decoder.layer.output(read).tanh() @ decoder.token_embedding.weight.T
        assert_close(outputs.cross_attentions[0], weights)
        assert_close(model.token_gates(outputs)["region gate"], gate)
        assert_close(outputs.logits, logits)
