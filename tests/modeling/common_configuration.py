"""Checks of configurations: round trips, defaults, refused values."""

import json
from typing import Any

import pytest
from transformers import AutoConfig

from .common_case import VISION, CaptionerCase

WRONG_FIELDS = [
    {"region_mask_rule": "guess"},
    {"token_mask_rule": "guess"},
    {"loss_reduction": "mean"},
    {"label_smoothing": 1.0},
    {"label_smoothing": -0.1},
]


def fields_of(config: Any) -> dict[str, Any]:
    """Return the fields that a round trip must keep."""
    added_by_saving = ("transformers_version", "auto_map", "_name_or_path")
    return {key: value for key, value in config.to_dict().items() if key not in added_by_saving}


class ConfigurationChecks(CaptionerCase):
    """Checks 1 and 41 of the common suite, for configurations alone."""

    def test_configuration_round_trip(self, tmp_path):
        config = self.make_config(vision_config=dict(VISION), a_field_of_a_user=3)
        through_json = type(config).from_dict(json.loads(config.to_json_string(use_diff=False)))
        config.save_pretrained(tmp_path)
        through_file = AutoConfig.from_pretrained(tmp_path)
        for again in (through_json, through_file):
            assert type(again) is type(config)
            assert type(again.vision_config) is type(config.vision_config)
            assert fields_of(again) == fields_of(config)
        assert through_file.a_field_of_a_user == 3

    def test_configuration_defaults(self):
        """A configuration needs no arguments, and classification fields of the base class still work."""
        config_class = type(self.make_config())
        config = config_class(num_labels=7)
        assert config.is_encoder_decoder
        assert config.num_labels == 7
        assert config.decoder_start_token_id == config.bos_token_id is not None
        assert config.vocab_size > max(config.bos_token_id, config.eos_token_id, config.pad_token_id)
        assert fields_of(config_class.from_dict(config.to_dict())) == fields_of(config)

    def test_vocabulary_size_can_be_set(self, tmp_path):
        """As `AutoConfig.from_pretrained(..., vocab_size=...)` and the trainers of other libraries set it."""
        config = self.make_config()
        config.save_pretrained(tmp_path)
        assert AutoConfig.from_pretrained(tmp_path, vocab_size=config.vocab_size + 3).vocab_size == 33
        config.vocab_size += 5
        assert config.vocab_size == config.get_text_config().vocab_size == 35
        assert config.hidden_size > 0

    @pytest.mark.parametrize("fields", WRONG_FIELDS, ids=lambda fields: "-".join(map(str, *fields.items())))
    def test_configuration_refuses_wrong_values(self, fields):
        with pytest.raises(ValueError, match=f"`{next(iter(fields))}` is"):
            self.make_config(**fields)

    def test_configuration_of_a_different_model_type_is_refused(self, tmp_path):
        AutoConfig.for_model("gpt2").save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="configuration of a 'gpt2' model"):
            type(self.make_config()).from_pretrained(tmp_path)
