"""A Space and the handler of an Inference Endpoint: written by the command, and run."""

import base64
import io
import re
import runpy
import sys
import types
from pathlib import Path

import pytest
import yaml
from PIL import Image

from hf_captioners.cli import main
from hf_captioners.hub.pushing import push_checkpoint
from hf_captioners.hub.serving import space_requirements

from .captioner_cases import case_of, save_captioner
from .loopback_repositories import StoredFile

HANDLER = Path(__file__).parents[2] / "hub_cards" / "endpoint_handler.py"
IMAGE = Image.linear_gradient("L").resize((40, 30)).convert("RGB")


def caption_of(model, image, **options):
    processor = case_of("visualgpt").make_processor()
    pixels = processor(images=image, return_tensors="pt")["pixel_values"]
    return processor.post_process_image_text_to_text(model.generate(pixel_values=pixels, **options))


@pytest.fixture
def pushed(hub, tmp_path, capsys):
    """Push a captioner with handler and Space; return its model and the output of the command."""
    _, model = save_captioner("visualgpt", tmp_path / "captioner")
    assert main(["push", str(tmp_path / "captioner"), "captioner", "--endpoint", "--space"]) == 0
    return model, capsys.readouterr().out


def test_the_handler_answers(pushed, hub, tmp_path):
    """The handler runs from `handler.py` in the directory of the repository."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name, content in hub.repository("tester/captioner").files().items():
        (folder / name).write_bytes(content)
    handler = runpy.run_path(str(folder / "handler.py"))["EndpointHandler"](str(folder))
    expected = caption_of(pushed[0], IMAGE, max_new_tokens=5)[0]
    buffer = io.BytesIO()
    IMAGE.save(buffer, "PNG")
    text = base64.b64encode(buffer.getvalue()).decode()
    options = {"parameters": {"max_new_tokens": 5}}
    assert handler({"inputs": IMAGE, **options}) == [{"generated_text": expected}]
    assert handler({"inputs": text, **options}) == [{"generated_text": expected}]
    assert handler({"inputs": [IMAGE, f"data:image/png;base64,{text}"], **options}) == [
        [{"generated_text": expected}],
        [{"generated_text": expected}],
    ]
    assert expected and isinstance(handler({"inputs": IMAGE})[0]["generated_text"], str)
    for data, said in (
        ({}, "`inputs` is missing"),
        ({"inputs": IMAGE, "parameters": {"beams": 3}}, "has beams, expected any of max_new_tokens, min_new_tokens"),
        ({"inputs": "http://127.0.0.1/secret.png"}, "expected the bytes of an image as base64"),
        ({"inputs": str(folder / "secret.png")}, "expected the bytes of an image as base64"),
        ({"inputs": {"image": "http://127.0.0.1/secret.png"}}, "has an item of type dict, expected base64 text"),
    ):
        with pytest.raises(ValueError, match=said):
            handler(data)


def test_the_handler_captions_lists_in_batches(pushed, tmp_path):
    """With the usual parameters; an image that cannot be read gets its reason, and the others their captions."""
    handler = runpy.run_path(str(HANDLER))["EndpointHandler"](str(tmp_path / "captioner"))
    sizes, own = [], handler.captioner.caption_prepared

    def noted(items, **options):
        sizes.append(len(items))
        return own(items, **options)

    handler.captioner.caption_prepared = noted
    options = {"num_beams": 2, "min_new_tokens": 3, "max_new_tokens": 5, "length_penalty": 0.5, "return_scores": True}
    inputs = [*(IMAGE.rotate(angle) for angle in range(17)), base64.b64encode(b"no image").decode(), [["path"]]]
    found = handler({"inputs": inputs, "parameters": options})
    assert sizes == [16, 1]
    for image, (record,) in zip(inputs[:17], found, strict=False):
        assert record["generated_text"] == handler({"inputs": image, "parameters": options})[0]["generated_text"]
        assert record["score"] < 0
    assert "cannot be read" in found[17][0]["error"] and "item of type list" in found[18][0]["error"]
    sampled = {"do_sample": True, "top_p": 0.9, "top_k": 5, "temperature": 2.0, "num_return_sequences": 3}
    assert len(handler({"inputs": [IMAGE], "parameters": sampled})[0]) == 3
    assert handler({"inputs": []}) == []


def gradio_stub(uploads):
    """Return a stub of the parts of gradio that the app uses; it records the components."""
    made = {}

    def component(name):
        def make(*arguments, **options):
            made[name] = arguments, options
            return types.SimpleNamespace(GRADIO_CACHE=str(uploads))

        return make

    class Error(Exception):
        def __init__(self, message, **_):
            super().__init__(message)

    names = ("Interface", "Image", "Textbox")
    return types.SimpleNamespace(made=made, Error=Error, **{name: component(name) for name in names})


def test_the_space_captions(pushed, hub, monkeypatch, tmp_path):
    """`app.py` runs with a stub of gradio; its function returns the caption of the pushed captioner.

    It reads uploaded files only, and those with the library's reader of images.
    """
    model, printed = pushed
    assert printed.splitlines()[1] == f"{hub.url}/spaces/tester/captioner"
    files = {name: text.decode() for name, text in hub.repository("tester/captioner", "space").files().items()}
    assert files.keys() == {"app.py", "README.md", "requirements.txt"}
    assert files["requirements.txt"].splitlines() == space_requirements()
    assert all(re.fullmatch(r"[\w-]+>=[\d.]+", line) for line in space_requirements())
    card = yaml.safe_load(files["README.md"].split("---")[1])
    assert (card["sdk"], card["app_file"], card["models"]) == ("gradio", "app.py", ["tester/captioner"])
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    stub = gradio_stub(uploads)
    monkeypatch.setitem(sys.modules, "gradio", stub)
    names: dict = {"__name__": "app"}
    exec(compile(files["app.py"], "app.py", "exec"), names)
    (function, *_), options = stub.made["Interface"]
    assert function is names["caption"] and options["title"] == "captioner"
    assert "medical" not in options["description"]
    IMAGE.save(uploads / "photo.png")
    (uploads / "page.png").write_bytes(b"%!PS-Adobe-3.0")
    read = names["image"].preprocess
    uploaded = [types.SimpleNamespace(path=str(uploads / name)) for name in ("photo.png", "page.png")]
    assert function(read(uploaded[0])) == caption_of(model, IMAGE, max_new_tokens=32)[0]
    assert function(read(None)) == ""
    with pytest.raises(stub.Error, match=r"^The image page\.png cannot be read: .* no image of the formats"):
        function(read(uploaded[1]))
    IMAGE.save(tmp_path / "private.png")
    (uploads / "link.png").symlink_to(tmp_path / "private.png")
    for path in (tmp_path / "private.png", uploads / "link.png", uploads / ".." / "private.png", uploads, "", None):
        with pytest.raises(stub.Error, match="Upload an image file"):
            read(types.SimpleNamespace(path=path and str(path)))


def test_a_persons_page_and_handler_stay(pushed, hub, tmp_path, capsys):
    """Existing files are not overwritten; a Space may have a different name."""
    hub.repository("tester/captioner", "space").commit("main", "mine", {"app.py": StoredFile(b"# mine")})
    hub.repository("tester/captioner").commit("main", "mine", {"handler.py": StoredFile(b"# mine")})
    push = ["push", str(tmp_path / "captioner"), "captioner", "--endpoint"]
    assert main([*push, "--space"]) == 0
    assert hub.repository("tester/captioner", "space").files()["app.py"] == b"# mine"
    assert hub.repository("tester/captioner").files()["handler.py"] == b"# mine"
    assert main([*push, "--space", "try-it"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{hub.url}/spaces/tester/try-it"
    assert "app.py" in hub.repository("tester/try-it", "space").files()


def test_what_cannot_be_served_is_refused_before_anything_is_pushed(hub, tmp_path, capsys):
    save_captioner("visualgpt", tmp_path / "captioner", vision_config=None)
    for more in (["--space"], ["--endpoint"]):
        assert main(["push", str(tmp_path / "captioner"), "captioner", *more]) == 2
        assert "captioning_visualgpt without a vision model. A Space and an endpoint" in capsys.readouterr().err
    assert main(["push", str(tmp_path / "captioner"), "captioner", "--space", "--revision", "better"]) == 2
    assert "leave --create_pr and --revision out" in capsys.readouterr().err
    assert not hub.repositories
    push_checkpoint(tmp_path / "captioner", "captioner")
