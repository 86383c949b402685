"""Image Transformer equals the authors' code, in float64 and float32: relations, forward, three losses and their
gradients, cached steps and every search."""

import re

import pytest
import torch
from safetensors.torch import load_file

from hf_captioners.hub.convert import image_transformer as converter
from hf_captioners.modeling.modeling_image_transformer import (
    ImageTransformerForConditionalGeneration,
    relations_of_boxes,
)
from tests.variants import slow_unless

from .attention_lstm import (
    Case,
    compare_encoder,
    compare_forward,
    compare_losses,
    compare_search,
    compare_steps,
    finish,
    gate_name,
    moved,
    of_visible_queries,
    precisions,
    time_first,
)
from .figures import FIGURES, variants

pytestmark = pytest.mark.parity

FOLDERS = [name for name in variants("image_transformer") if not name.endswith("/adjacency")]
MAPS = {"p": "child", "n": "neighbour", "c": "parent"}  # the released names are turned round
# Moving these cannot change any figure.
CANNOT_MATTER = {
    r"refiner\..*\.self_attn\.(linears\.1|k_linears(\.\d)?)\.bias": "a constant added to all scores of a query leaves "
    "the softmax as it is",
}


class GraphCase(Case):
    """Folder of regions with the released relations."""

    @property
    def images(self) -> dict:
        return {**super().images, "region_relations": self.figures.inputs["flag_feats"]}


def case_of(folder: str, precision: str) -> GraphCase:
    return GraphCase(folder, precision, converter)


@torch.no_grad()
def compare_relations(case: Case) -> None:
    """Boxes in pixels, divided by one number, give the relations of the folder, and the same logits."""
    boxes, mask = case.figures.inputs["boxes"], case.images["region_mask"]
    found = relations_of_boxes(boxes / boxes.max(), overlap="released")
    real = mask[:, None] & mask[:, :, None]
    case.comparison.equal("flag_feats", found * real, case.figures.inputs["flag_feats"])
    of_boxes = {name: value for name, value in case.images.items() if name != "region_relations"}
    of_boxes["region_boxes"] = boxes / boxes.max()
    given, made = (case.model(**inputs, **case.words, output_gates=True) for inputs in (case.images, of_boxes))
    assert (made.encoder_relations is None) == (not case.model.config.reads_relations)
    if made.encoder_relations is not None:
        case.comparison.equal("relations", made.encoder_relations, given.encoder_relations)
    case.comparison.equal("logits of boxes", made.logits, given.logits)


def compare_graph(case: Case) -> None:
    """Encoder outputs; the maps of the three relations before they are cut to related regions."""
    config, expected = case.model.config, case.figures.expected
    plain = [layer for layer in range(config.encoder_layers) if layer not in config.spatial_layers]

    def name_of_gate(layer: int) -> str:
        if not config.share_plain_attention:
            return gate_name(layer)
        if layer in config.spatial_layers:
            return f"glu.refiner.layer{layer + 1}.self_attn.aoa_layer.1.gate"
        first = next(name for name in expected if ".call0." in name)
        return first.replace("call0", f"call{plain.index(layer)}")

    encoded = compare_encoder(case, name_of_gate)
    for layer in config.spatial_layers:
        weights = encoded.attentions[layer]  # [B, S, H, R, R]
        for letter, relation in MAPS.items():
            one = weights[:, config.spatial_relations.index(relation)]
            case.close(f"enc_attn.{layer}.{letter}", one, where=of_visible_queries(one, encoded.region_mask))
    if "prep.p_att_feats" in expected:  # values, keys
        prepared = encoded.level_states.flip(1).transpose(1, 2).flatten(2)
        case.close("prep.p_att_feats", prepared, where=encoded.region_mask)


def compare_maps(case: Case) -> None:
    """Attention maps of the sub-transformers, their gates, and cached steps."""
    out, steps = compare_forward(case), case.figures.config["decoder_steps_run"]
    weights, real = time_first(out.cross_attentions[0].movedim(-2, 1), steps), time_first(case.real, steps)
    for number in range(case.model.config.num_sub_transformers):
        one = weights[:, :, number]  # [T, B, H, R]
        name = "dec_attn" if "dec_attn" in case.figures.expected else f"dec_attn.{number + 1}"
        case.close(name, one, where=real[..., None].expand(one.shape[:3]))
    if out.gates[0].attention is not None:
        case.close("dec_gate", time_first(out.gates[0].attention, steps), where=real)
    compare_steps(case)


@precisions
@pytest.mark.parametrize("folder", FOLDERS)
def test_equals_released_code(folder, precision, report_compared):
    case = case_of(folder, precision)
    assert type(case.model) is ImageTransformerForConditionalGeneration
    for compare in (compare_relations, compare_losses, compare_graph, compare_maps, compare_search):
        compare(case)
    finish(case, report_compared)


@pytest.mark.parametrize("name", ["image_transformer/adjacency"])
def test_relations_equal_the_released_and_the_papers(name, report_compared):
    """Every set of boxes under both rules; the three matrices of the paper."""
    folder = FIGURES / name
    boxes, expected = load_file(folder / "inputs.safetensors"), load_file(folder / "expected.safetensors")
    compared, read = 0, set()
    for key, given in boxes.items():
        group, clean = key.removesuffix(".boxes"), relations_of_boxes(given, overlap="clamped")
        found = {
            "flag_released": relations_of_boxes(given, overlap="released"),
            "flag_clean": clean,
            "child": (clean == 1).long(),
            "neighbour": (clean == 2).long(),
            "parent": (clean == 3).long(),
        }
        for kind, values in found.items():
            assert torch.equal(values, expected[f"{group}.{kind}"]), f"{group}.{kind}"
            compared += values.numel()
            read.add(f"{group}.{kind}")
    assert set(expected) - read == {f"{key.removesuffix('.boxes')}.overlap_fraction" for key in boxes}
    report_compared(compared)


def cannot_matter(name: str, case: Case) -> bool:
    """Whether moving this weight cannot change any figure."""
    is_copy = name not in case.gradients or case.gradients[name] is None  # of an attention that layers share
    return is_copy or any(re.fullmatch(pattern, name) for pattern in CANNOT_MATTER)


# Three variants have all kinds of weights; the others take their time under `make test-all`.
QUICK = ("gated_decoder", "layer1", "refine_plain_ff")


@pytest.mark.parametrize(
    "folder",
    slow_unless(lambda name: name.endswith(QUICK), FOLDERS),
)
def test_every_weight_matters(folder):
    original = case_of(folder, "float64")
    compare_losses(original)
    unnoticed, tried = [], 0
    for name in original.weights:
        if cannot_matter(name, original):
            continue
        case = case_of(folder, "float64")
        case.gradients = original.gradients
        moved(case, name, tried)
        for compare in (compare_graph, compare_maps):
            if not case.comparison.differences:
                compare(case)
        tried += 1
        if not case.comparison.differences:
            unnoticed.append(name)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 15, f"only {tried} weights were tried"
