"""`hf-captioners explain`: a tile for each word, bright where the attention is."""

import numpy as np
import pytest
import torch
from PIL import Image

from hf_captioners.cli import main
from hf_captioners.explain.drawing import GAP, LABEL, TILE, paint
from hf_captioners.explain.explanation import explain_caption, load_explainable
from hf_captioners.processing.vocabulary import karpathy_words
from hf_captioners.training.starting import ModelArguments, start_captioner
from hf_captioners.word_values import word_means


@pytest.fixture(scope="module")
def word_captioner(once_a_run, scenes, vision_model):
    """An untrained Show, Attend and Tell with hard attention, saved."""

    def fill(folder):
        torch.manual_seed(3)
        fields = ["embedding_size=12", "hidden_size=12", "attention_size=8", "attention_type=hard"]
        parts = ModelArguments(
            architecture="show_attend_tell", vision_model=vision_model, min_word_count=1, model_config=fields
        )
        model, processor = start_captioner(parts, [caption for captions in scenes["captions"] for caption in captions])
        model.save_pretrained(folder)
        processor.save_pretrained(folder)

    return str(once_a_run("word_captioner", fill))


@pytest.mark.parametrize("kind", ["captioner", "word_captioner"])
def test_explain_own_caption(kind, request, images, tmp_path, capsys):
    model, output = request.getfixturevalue(kind), tmp_path / "maps.png"
    assert main(["explain", str(images / "scene_000.png"), "--model", model, "--output", str(output)]) == 0
    words = capsys.readouterr().out.splitlines()[0].split()
    columns = min(5, 1 + len(words))
    rows = -(-(1 + len(words)) // columns)
    assert Image.open(output).size == (columns * (TILE + GAP) + GAP, rows * (TILE + LABEL + GAP) + GAP)


def test_explain_given_caption_at_places(word_captioner, images, scenes, tmp_path, capsys, monkeypatch):
    """Hard attention by places; the file's name comes from the image's."""
    caption = " ".join(karpathy_words(scenes[1]["captions"][0]))
    monkeypatch.chdir(tmp_path)
    arguments = ["explain", str(images / "scene_001.png"), "--model", word_captioner]
    assert main([*arguments, "--caption", caption, "--locations"]) == 0
    assert capsys.readouterr().out == f"{caption}\nWrote scene_001.attention.png.\n"
    assert main(arguments) == 2
    assert "scene_001.attention.png exists. Pass --overwrite" in capsys.readouterr().err


def test_places_need_hard_attention(captioner, images, capsys):
    assert main(["explain", str(images / "scene_000.png"), "--model", captioner, "--locations"]) == 2
    assert "`--locations` needs a model with hard attention" in capsys.readouterr().err


def test_from_python(word_captioner, images):
    """Arrays of the maps: one for each word, which sums to 1 over the regions; the image itself may be given."""
    model, processor = load_explainable(word_captioner)
    source = images / "scene_002.png"
    explanation = explain_caption(model, processor, source, num_beams=1)
    assert explanation.words and explanation.caption == " ".join(explanation.words)
    assert explanation.maps.shape == (len(explanation.words), len(explanation.boxes))
    np.testing.assert_allclose(explanation.maps.sum(axis=1), 1, atol=1e-5)
    assert explanation.boxes.shape[1] == 4 and 0 <= explanation.boxes.min() <= explanation.boxes.max() <= 1
    with Image.open(source) as image:
        again = explain_caption(model, processor, image, explanation.caption)
    assert again.words == explanation.words
    np.testing.assert_allclose(again.maps, explanation.maps, atol=1e-5)


def test_missing_image(captioner, capsys):
    assert main(["explain", "none.jpg", "--model", captioner]) == 2
    assert "there is no file or folder none.jpg" in capsys.readouterr().err


def test_heat_lies_where_the_weight_is():
    """Four cells, all weight on the upper right one; smoothing keeps the brightest place there."""
    boxes = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]])
    heat = paint(np.array([0.0, 1.0, 0.0, 0.0]), boxes, (40, 60))
    assert heat.shape == (40, 60) and heat.max() == 1
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert row < 20 and column >= 30
    assert heat[30:, :20].max() < 0.1


def test_pieces_of_a_word_share_a_tile():
    """The map of a word is the mean of those of its tokens; what follows the end token is left out."""

    class Letters:
        class tokenizer:  # noqa: N801
            eos_token_id = 9

        def decode(self, tokens):
            return "".join({0: "", 1: " do", 2: "g", 3: " runs"}[token] for token in tokens if token != 9).strip()

    boxes = torch.tensor([[0, 0, 0.5, 1], [0.5, 0, 1, 1.0]])
    maps = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    words, means = word_means(Letters(), [0, 1, 2, 3, 9, 9], maps.numpy())
    assert words == ["dog", "runs"]
    heat = [paint(mean, boxes.numpy(), (8, 8)) for mean in means]
    np.testing.assert_allclose(heat[0][:, 0], heat[0][:, -1], atol=0.02)
    assert heat[1][:, -1].mean() > 2 * heat[1][:, 0].mean()


def test_a_graph_of_boxes_is_drawn(scenes, vision_model, images, tmp_path, capsys):
    """Beside the words, with the gate of each; every relation has a tile for each of three regions."""
    torch.manual_seed(3)
    fields = ["embedding_size=12", "hidden_size=12", "num_heads=2", "encoder_layers=1", "vision_grid_size=[1, 2]"]
    parts = ModelArguments(
        architecture="image_transformer", vision_model=vision_model, min_word_count=1, model_config=fields
    )
    model, processor = start_captioner(parts, [caption for captions in scenes["captions"] for caption in captions])
    folder, output = tmp_path / "graph_captioner", tmp_path / "a.attention.png"
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    typed = ["explain", str(images / "scene_000.png"), "--model", str(folder), "--output", str(output)]
    assert main(typed) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"Wrote {output}.", f"Wrote {tmp_path / 'a.graph.png'}."]
    assert Image.open(tmp_path / "a.graph.png").size == (3 * (TILE + GAP) + GAP, 4 * (TILE + LABEL + GAP) + GAP)
    output.unlink()
    assert main(typed) == 2
    assert "a.graph.png exists. Pass --overwrite" in capsys.readouterr().err
    explanation = explain_caption(*load_explainable(str(folder)), images / "scene_000.png")
    assert (
        explanation.gates.shape == (len(explanation.words),)
        and ((explanation.gates > 0) & (explanation.gates < 1)).all()
    )
    assert explanation.graph.is_parent[1:, 0].all() and explanation.graph.is_parent.sum() == 4
    assert list(explanation.graph.maps) == ["child", "neighbour", "parent"]
    assert not explanation.graph.maps["child"][1:].any() and explanation.graph.maps["child"][0, 1:].all()
