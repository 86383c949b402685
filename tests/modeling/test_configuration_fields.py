"""Values that fields of configurations refuse, generated from the annotations of every class."""

import dataclasses
from typing import Any, Literal, get_args, get_origin

import pytest
from transformers import PreTrainedConfig

from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.modeling.configuration_attribute_detector import AttributeDetectorConfig
from hf_captioners.modeling.configuration_m2_transformer import M2TransformerConfig

CLASSES = [one.load("Config") for one in ARCHITECTURES.values() if one.package is None] + [AttributeDetectorConfig]
INHERITED = {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"is_encoder_decoder"}
# Wrong for every field that does not name the type.
VALUES: tuple[Any, ...] = ("2048x", 2.5, 7, True, None, ["a", 1.5], {"a": 1})


def allowed_types(annotation: Any) -> set[type]:
    """Return the types of an annotation; those of its choices for a `Literal`."""
    if get_origin(annotation) is Literal:
        return {type(choice) for choice in get_args(annotation)}
    if get_origin(annotation) in (list, tuple, dict):
        return {get_origin(annotation)}
    if isinstance(annotation, type):
        return {annotation}
    return set().union(*(allowed_types(part) for part in get_args(annotation)))


def wrong_values(field: dataclasses.Field) -> list[Any]:
    """Return values that are none of a field: of other types, and texts that are no choice."""
    types = allowed_types(field.type)
    other_types = [value for value in VALUES if type(value) not in types and type(value) is not tuple]
    return [*other_types, *(["no_choice"] if get_origin(field.type) is Literal else [])]


@pytest.mark.parametrize("config_class", CLASSES, ids=lambda one: one.__name__)
def test_wrong_values_are_refused(config_class):
    """Every field, when it is given and when it is set; the message names field, value and what is expected."""
    config = config_class()
    for field in dataclasses.fields(config_class):
        if field.name in INHERITED:
            continue
        values = wrong_values(field)
        assert len(values) >= 3, field.name
        for value in values:
            before = getattr(config, field.name)
            with pytest.raises(ValueError) as refused:
                setattr(config, field.name, value)
            assert str(refused.value).startswith(f"`{field.name}` is {value!r}, expected "), str(refused.value)
            assert getattr(config, field.name) is before
        with pytest.raises(ValueError, match=f"^`{field.name}` is .*, expected "):
            config_class(**{field.name: values[0]})


@pytest.mark.parametrize("config_class", CLASSES, ids=lambda one: one.__name__)
def test_numbers_out_of_range_are_refused(config_class):
    """NaN and a negative number, for every field that declares a range."""
    ranged = [field for field in dataclasses.fields(config_class) if "validator" in field.metadata]
    assert {"label_smoothing", "vision_min_regions", "vision_grid_size"} <= {field.name for field in ranged}
    for field in ranged:
        value = float("nan") if float in allowed_types(field.type) else -1
        with pytest.raises(ValueError, match=f"^`{field.name}` is {value}, expected "):
            config_class(**{field.name: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ffn_dim": "2048"}, "`ffn_dim` is '2048', expected int."),
        ({"identity_map_reordering": "no"}, "`identity_map_reordering` is 'no', expected bool."),
        ({"max_position_embeddings": "x"}, "`max_position_embeddings` is 'x', expected int."),
        ({"memory_slots": 2.5}, "`memory_slots` is 2.5, expected int."),
        ({"memory_slots": -1}, "`memory_slots` is -1, expected at least 0."),
        ({"num_hidden_layers": "3"}, "`decoder_layers` is '3', expected int."),
        (
            {"fusion": "mesh"},
            "`fusion` is 'mesh', expected one of 'meshed', 'one_to_one', 'last'. Did you mean `meshed`?",
        ),
    ],
)
def test_sentences(fields, message):
    with pytest.raises(ValueError) as refused:
        M2TransformerConfig(**fields)
    assert str(refused.value) == message


def test_integers_for_floats_and_tuples_for_lists_are_taken():
    config = M2TransformerConfig(dropout=0, cross_levels=(0, 1), eos_token_id=(2, 3))
    assert type(config.dropout) is int and config.cross_levels == (0, 1) and config.eos_token_id == (2, 3)


def test_fields_that_do_not_fit_each_other_are_refused_by_validate():
    config = M2TransformerConfig()
    config.num_attention_heads = 7
    with pytest.raises(ValueError, match="not a multiple of `num_attention_heads=7`"):
        config.validate()
