"""The list of public names: it is that of the sources, and it finds what breaks programs of users."""

import copy
import json
import shutil

import pytest

from hf_captioners.deprecation import changing_defaults, deprecated, deprecated_arguments
from release import public_api
from tests.distributions import ROOT, copy_sources

LIST = json.loads(public_api.LIST.read_text(encoding="utf-8"))
LOAD, BATCHES = "hf_captioners.load_captioner", "hf_captioners.captioning.CaptionBatches"
CHECK = ["-m", "release.public_api", "--check"]


def planted(name, *changes, group="names"):
    """The list with an entry removed, or with its values changed."""
    api = copy.deepcopy(LIST)
    if not changes:
        del api[group][name]
    for key, value in changes:
        api[group][name][key] = value
    return api


def changed_parameters(name, change):
    """The list with other parameters of a name."""
    parameters = list(LIST["names"][name]["parameters"])
    change(parameters)
    return planted(name, ("parameters", parameters))


def flag(command, name, value):
    """The list with another flag, or without it where the value is None."""
    api = copy.deepcopy(LIST)
    del api["commands"][command][name]
    if value is not None:
        api["commands"][command][name] = value
    return api


def test_the_list_is_that_of_the_sources(fork_server):
    ran = fork_server.run(CHECK, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_the_list_has_what_users_call():
    assert {LOAD, f"{BATCHES}.__call__", "hf_captioners.VisualGPTConfig", "hf_captioners.onnx.OnnxCaptioner"} <= set(
        LIST["names"]
    )
    assert "srau_threshold=0.2" in LIST["names"]["hf_captioners.VisualGPTConfig"]["parameters"]
    assert LIST["commands"]["caption"]["--batch_size"] == {"default": "16"}
    assert LIST["commands"]["train"]["--captions_per_image"] == {"default": "null"}
    assert "--learning_rate" in LIST["commands"]["train"] and "--ddp_backend" not in LIST["commands"]["train"]
    assert public_api.breaks(LIST, LIST) == []
    assert json.loads(public_api.as_text(LIST)) == LIST


BREAKS = {
    f"{LOAD} is gone": planted(LOAD),
    "the default of `device` was None and is 'cpu'": changed_parameters(
        BATCHES, lambda given: given.__setitem__(2, "device='cpu'")
    ),
    "the default of `source` was None and is required": changed_parameters(
        LOAD, lambda given: given.__setitem__(0, "source")
    ),
    "`dtype` is not argument 4 any more": changed_parameters(BATCHES, lambda given: given.insert(2, "threads=None")),
    "`metrics` is gone": changed_parameters(
        "hf_captioners.compute_caption_metrics", lambda given: given.remove("metrics=['bleu', 'rouge_l', 'cider_d']")
    ),
    "`folder` is new and has no default": changed_parameters(LOAD, lambda given: given.insert(0, "folder")),
    "was a function and is a class": planted(LOAD, ("kind", "class")),
    "is no hf_captioners.CaptioningTrainer any more": planted("hf_captioners.SCSTTrainer", ("bases", [])),
    "has no 'cider_d' any more": planted("hf_captioners.metrics.METRICS", ("keys", ["bleu"])),
    "the command review is gone": planted("review", group="commands"),
    "caption: --num_beams is gone": flag("caption", "--num_beams", None),
    "the default of --batch_size was 16 and is 8": flag("caption", "--batch_size", {"default": "8"}),
    "--batch_size is required now": flag("caption", "--batch_size", {"default": "16", "required": True}),
    "--seeds is new and required": planted(
        "caption", ("--seeds", {"default": "None", "required": True}), group="commands"
    ),
}


@pytest.mark.parametrize("said", BREAKS)
def test_a_break_is_found(said):
    found = public_api.breaks(LIST, BREAKS[said])
    assert any(said in text for text in found), found
    assert BREAKS[said] != LIST


def test_an_addition_is_no_break():
    assert not public_api.breaks(LIST, changed_parameters(LOAD, lambda given: given.insert(3, "threads=None")))
    assert not public_api.breaks(planted(LOAD), LIST)


@pytest.mark.parametrize("key", [f"{BATCHES}(device)", BATCHES])
def test_a_break_that_was_deprecated_is_allowed(key):
    said = "the default of `device` was None and is 'cpu'"
    before = {**LIST, "deprecated": {key: "gone in 1.3"}}
    assert public_api.breaks(before, BREAKS[said]) == []
    assert public_api.breaks(LIST, {**BREAKS[said], "deprecated": {key: "too late"}}), "not in the same version"
    other = {**LIST, "deprecated": {f"{BATCHES}(dtype)": "gone in 1.3"}}
    assert public_api.breaks(other, BREAKS[said])


def test_deprecations_are_in_the_list():
    @deprecated("`Old` is gone in 1.3; use `New`.")
    class Old:
        pass

    @deprecated_arguments(beams="`beams` is gone in 1.3; use `num_beams`.")
    @changing_defaults(size="The default of `size` is 32 from 1.3.")
    def caption(images, beams=None, size=16):
        return images, beams, size

    Old.__module__ = "hf_captioners.old"
    found = public_api.deprecations_of("old", Old) | public_api.deprecations_of("caption", caption)
    assert found == {
        "old": "`Old` is gone in 1.3; use `New`.",
        "caption(beams)": "`beams` is gone in 1.3; use `num_beams`.",
        "caption(size)": "The default of `size` is 32 from 1.3.",
    }
    with pytest.warns(FutureWarning, match="use `New`"):
        Old()
    with pytest.warns(FutureWarning) as told:
        assert caption("a.png", 3) == ("a.png", 3, 16)
    assert [str(one.message)[:10] for one in told] == ["The defaul", "`beams` is"]
    assert all(one.filename == __file__ for one in told)
    assert caption("a.png", size=4) == ("a.png", None, 4)
    with pytest.raises(ValueError, match="caption has no argument beems"):
        deprecated_arguments(beems="typed wrongly")(caption)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the sources with README and docs, which a test may change."""
    tree = copy_sources(tmp_path_factory.mktemp("planted") / "tree")
    shutil.copytree(ROOT / "docs", tree / "docs")
    return tree


PLANTED = {
    "a removed name": (
        "hf_captioners/__init__.pyi",
        "from .default_model import list_models as list_models\n",
        "",
        "hf_captioners.list_models is gone",
    ),
    "a changed default": (
        "hf_captioners/captioning/columns.py",
        'column: str = "image",',
        'column: str = "photo",',
        "CaptionBatches: the default of `column` was 'image' and is 'photo'",
    ),
    "a changed flag": (
        "hf_captioners/cli/export.py",
        '"--opset"',
        '"--opset_version"',
        "export: --opset is gone",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_fails_the_check(fault, sources, fork_server):
    name, old, new, said = PLANTED[fault]
    path = sources / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    ran = fork_server.run(CHECK, cwd=sources)
    path.write_text(text, encoding="utf-8")
    assert ran.returncode == 1 and said in ran.stderr, ran.stderr


def test_a_release_is_frozen_once(monkeypatch, tmp_path):
    """Breaks of the last release are refused, whatever was written in between."""
    monkeypatch.setattr(public_api, "LIST", tmp_path / "list.json")
    monkeypatch.setattr(public_api, "RELEASED", tmp_path / "released")
    monkeypatch.setattr(public_api, "public_api", lambda: {**LIST, "version": "1.0.0"})
    assert public_api.main([]) == 0 and public_api.main(["--release"]) == 0
    with pytest.raises(FileExistsError):
        public_api.main(["--release"])
    monkeypatch.setattr(public_api, "public_api", lambda: {**planted(LOAD), "version": "1.1.0"})
    assert public_api.main([]) == 1 and public_api.main(["--breaking"]) == 1 and public_api.main(["--check"]) == 1
    monkeypatch.setattr(public_api, "public_api", lambda: {**LIST, "version": "1.10.0"})
    assert public_api.main(["--check"]) == 1, "the list has another version"
    assert public_api.main(["--release"]) == 0 and public_api.last_released()["version"] == "1.10.0"
