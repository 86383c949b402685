"""`hf-captioners explain`: a panel for each word, dark where the attention is small, in several formats."""

import html
import re

import numpy as np
import pytest
import torch
from PIL import Image

from hf_captioners.cli import main
from hf_captioners.explain.drawing import draw_attention
from hf_captioners.explain.explanation import explain_caption, load_explainable
from hf_captioners.explain.graph import draw_graph
from hf_captioners.explain.panels import paint, percent, strongest, top_of, veil
from hf_captioners.processing.vocabulary import karpathy_words, word_means
from hf_captioners.training.starting import ModelArguments, start_captioner


@pytest.mark.parametrize("kind", ["captioner", "word_captioner"])
@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_explain_own_caption(kind, ending, request, images, tmp_path, capsys):
    """Every format has one panel a word; text of SVG files and pages is text."""
    model, output = request.getfixturevalue(kind), tmp_path / f"maps.{ending}"
    assert main(["explain", str(images / "scene_000.png"), "--model", model, "--output", str(output)]) == 0
    words = capsys.readouterr().out.splitlines()[0].split()
    if ending == "png":
        assert Image.open(output).format == "PNG"
        return
    text = html.unescape(output.read_text())
    start, end = ("<figcaption>", "</figcaption>") if ending == "html" else (">", "</text>")
    for word in ("image", *words):
        assert text.count(f"{start}{word}{end}") >= words.count(word), word
    assert ("<image" in text) and not re.search(r'(src|href)="http', text)


def test_several_images(word_captioner, images, tmp_path, monkeypatch, capsys):
    """A page, or a folder of drawings; a drawing cannot have several images."""
    monkeypatch.chdir(tmp_path)
    two = [str(images / f"scene_00{index}.png") for index in (0, 1)]
    typed = ["explain", *two, "--model", word_captioner, "--num_beams", "1"]
    assert main([*typed, "--output", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<section>") == 2 and all(name in page for name in two)
    assert main([*typed, "--output", "drawings"]) == 0
    assert {path.name for path in (tmp_path / "drawings").iterdir()} == {
        "scene_000.attention.png",
        "scene_001.attention.png",
    }
    capsys.readouterr()
    assert main([*typed, "--output", "one.png"]) == 2
    assert "`--output` is one.png for 2 images; expected a folder, or an .html file" in capsys.readouterr().err
    assert main([*typed, "--caption", "a star"]) == 2
    assert "`--caption` explains one image, but 2 are given" in capsys.readouterr().err
    assert main([*typed, "--output", "a.bmp"]) == 2
    assert "expected a folder or a file that ends in .png, .svg" in capsys.readouterr().err
    assert main(["explain", two[0], two[0], "--model", word_captioner]) == 2
    assert "Several images are called scene_000" in capsys.readouterr().err


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


def test_relevance(captioner, images, tmp_path, monkeypatch, capsys):
    """Gradient times attention, in files of its own and with a legend of its own; hard attention has none."""
    monkeypatch.chdir(tmp_path)
    typed = ["explain", str(images / "scene_000.png"), "--model", captioner, "--caption", "two red stars"]
    assert main([*typed, "--method", "relevance"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"scene_000.relevance.png"}
    for method, legend in (("attention", "even attention to"), ("relevance", "even relevance of")):
        assert main([*typed, "--method", method, "--output", "page.html", "--overwrite"]) == 0
        assert legend in (tmp_path / "page.html").read_text()
        assert main([*typed, "--method", method, "--output", "maps.svg", "--overwrite"]) == 0
        assert legend in (tmp_path / "maps.svg").read_text()
    model, processor = load_explainable(captioner)
    found, attention = (
        explain_caption(model, processor, images / "scene_000.png", "two red stars", method=method)
        for method in ("relevance", "attention")
    )
    assert found.method == "relevance" and found.maps.shape == attention.maps.shape
    assert not np.allclose(found.maps, attention.maps, atol=1e-3)
    sums = found.maps.sum(axis=1)
    assert ((sums <= 1 + 1e-5) & (found.maps.min(axis=1) >= 0)).all() and sums.max() > 0.3
    with pytest.raises(ValueError, match="`method` is 'gradient', expected 'attention' or 'relevance'"):
        explain_caption(model, processor, images / "scene_000.png", method="gradient")


def test_relevance_of_hard_attention(word_captioner, images, capsys):
    typed = ["explain", str(images / "scene_000.png"), "--model", word_captioner, "--method", "relevance"]
    assert main([*typed, "--locations"]) == 2
    assert "`location_decoding='argmax'` uses single regions" in capsys.readouterr().err


def test_missing_image(captioner, capsys):
    assert main(["explain", "none.jpg", "--model", captioner]) == 2
    assert "there is no file or folder none.jpg" in capsys.readouterr().err


FOUR = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]])


def test_each_region_is_painted_in_its_box():
    """Cells have their own weights, without blur; where boxes overlap, the largest weight counts."""
    weights = np.array([0.1, 0.6, 0.2, 0.1])
    painted = paint(weights, FOUR, (40, 60))
    assert painted.shape == (40, 60)
    assert (painted[:20, 30:] == np.float32(0.6)).all() and (painted[20:, :30] == np.float32(0.2)).all()
    whole = np.concatenate((FOUR, [[0, 0, 1, 1]]))
    assert (paint(np.array([0.1, 0.5, 0.0, 0.1, 0.3]), whole, (40, 60))[20:] == np.float32(0.3)).all()


def test_the_image_stays_visible():
    """Every pixel of the image shows through the colours, most where the weight is largest."""
    shade = veil(np.array([0.0, 0.6, 0.2, 0.2]), FOUR, (40, 60), 0.6)
    assert shade.shape == (40, 60, 4)
    assert shade[..., 3].max() < 0.65 * 255 and shade[10, 45, 3] == shade[..., 3].min() < shade[10, 5, 3]


def test_strongest_regions():
    """The largest first, at most three; even attention has none."""
    assert strongest(np.array([0.3, 0.1, 0.5, 0.1])) == [2] and strongest(np.full(4, 0.25)) == []
    assert strongest(np.array([0.3, 0.3, 0.3, 0.1, 0, 0, 0, 0])) == [0, 1, 2]
    assert [percent(weight) for weight in (0.256, 0.0961, 0.004, 1)] == ["26", "9.6", "0.4", "100"]
    assert top_of(np.array([[0.251, 0.1]])) == pytest.approx(0.26) and top_of(np.array([[1.0]])) == 1


def test_pieces_of_a_word_share_a_panel():
    """The map of a word is the mean of those of its tokens; what follows the end token is left out."""

    class Letters:
        class tokenizer:  # noqa: N801
            eos_token_id = 9

        def decode(self, tokens):
            return "".join({0: "", 1: " do", 2: "g", 3: " runs"}[token] for token in tokens if token != 9).strip()

    maps = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    words, means = word_means(Letters(), [0, 1, 2, 3, 9, 9], maps.numpy())
    assert words == ["dog", "runs"]
    np.testing.assert_array_equal(means, [[0.5, 0.5], [0.0, 1.0]])


def test_a_graph_of_boxes_is_drawn(scenes, vision_model, images, tmp_path, capsys):
    """Beside the words, with the gate of each; every relation has a panel for each of three regions."""
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
    output.unlink()
    assert main(typed) == 2
    assert "a.graph.png exists. Pass --overwrite" in capsys.readouterr().err
    explanation = explain_caption(*load_explainable(str(folder)), images / "scene_000.png")
    assert list(explanation.gates) == ["attention gate"]
    gate = explanation.gates["attention gate"]
    assert gate.shape == (len(explanation.words),) and ((gate > 0) & (gate < 1)).all()
    panels = [axes.get_title(loc="left") for axes in draw_graph(explanation).axes]
    assert panels[:2] == ["image", "boxes and their parents"] and len(panels) == 2 + 3 * 3
    assert [re.sub(r"region \d: ", "", panel) for panel in panels[2:]] == ["child", "neighbour", "parent"] * 3
    assert len(draw_attention(explanation).axes) == 2 * (1 + len(explanation.words)) + 1
    assert explanation.graph.is_parent[1:, 0].all() and explanation.graph.is_parent.sum() == 4
    assert list(explanation.graph.maps) == ["child", "neighbour", "parent"]
    assert not explanation.graph.maps["child"][1:].any() and explanation.graph.maps["child"][0, 1:].all()
