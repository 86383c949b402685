"""Images are prepared exactly as the backbone's own processor does; the fast path equals the exact one."""

import json

import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest
import timm
import torch
import transformers

from hf_captioners.processing import image_processing_captioning
from hf_captioners.processing.image_processing_captioning import (
    CaptioningImageProcessor,
    CaptioningImageProcessorFast,
    settings_of_backbone,
)

SIZES = [(64, 48), (48, 64), (100, 100), (301, 517), (16, 90), (33, 20)]  # width, height: also smaller than the crop
CLASSES = {
    "vit": (transformers.ViTImageProcessorPil, {}),
    "clip": (transformers.CLIPImageProcessorPil, {}),
    "siglip": (transformers.SiglipImageProcessorPil, {}),
    "dinov2": (transformers.BitImageProcessorPil, {"size": {"shortest_edge": 256}}),
    "deit": (transformers.DeiTImageProcessorPil, {}),
    "mobilenet_v2": (transformers.MobileNetV2ImageProcessorPil, {}),
    "mobilenet_v1": (transformers.MobileNetV1ImageProcessorPil, {}),
    "beit": (transformers.BeitImageProcessorPil, {}),
    "convnext": (transformers.ConvNextImageProcessorPil, {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
    "resnet": (transformers.ConvNextImageProcessorPil, {"size": {"shortest_edge": 224}, "crop_pct": 0.95}),
    "convnext_384": (transformers.ConvNextImageProcessorPil, {"size": {"shortest_edge": 384}}),
    "blip": (transformers.BlipImageProcessorPil, {}),
    "lanczos": (transformers.ViTImageProcessorPil, {"resample": 1}),
    "not_normalised": (transformers.ViTImageProcessorPil, {"do_normalize": False}),
    "nearest": (transformers.ViTImageProcessorPil, {"resample": 0}),
    "bilinear": (transformers.ViTImageProcessorPil, {"resample": 2}),
    "hamming": (transformers.ViTImageProcessorPil, {"resample": 5}),
    "longest": (transformers.CLIPImageProcessorPil, {"size": {"shortest_edge": 64, "longest_edge": 90}}),
    "within": (transformers.CLIPImageProcessorPil, {"size": {"max_height": 64, "max_width": 90}}),
    "not_resized": (transformers.ViTImageProcessorPil, {"do_resize": False, "do_center_crop": True, "crop_size": 32}),
}


def images(sizes=SIZES):
    """Noise with structure: smooth waves and hard edges, seeded."""
    rng = np.random.default_rng(0)
    for width, height in sizes:
        rows, columns = np.mgrid[:height, :width]
        waves = 127 + 127 * np.sin(rows / 5 + columns / 7)
        channels = [waves, waves.T.reshape(height, width), rng.integers(0, 256, (height, width))]
        yield PIL.Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def assert_equal(actual, expected):
    """Compare pixel values within 1e-6 of the largest one; neighbouring grey levels differ by 1e-3 or more."""
    actual, expected = (np.asarray(values) for values in (actual, expected))
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("saved", [False, True], ids=["object", "directory"])
def test_equal_to_the_backbones_own_processor(name, saved, tmp_path):
    cls, options = CLASSES[name]
    theirs = cls(**options)
    if saved:
        theirs.save_pretrained(tmp_path)
    ours = CaptioningImageProcessor.from_backbone(tmp_path if saved else theirs)
    for image in images():
        expected = theirs(image, return_tensors="np")["pixel_values"]
        assert_equal(ours(image, return_tensors="np")["pixel_values"], expected)
        assert expected.shape[1] == 3


def test_old_files_without_class_defaults_written_out(tmp_path):
    """A preprocessor_config.json of the feature-extractor age names two numbers; the rest is the class's."""
    old = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 40, "crop_size": 32, "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    ours = CaptioningImageProcessor.from_backbone(tmp_path)
    assert dict(ours.size) == {"shortest_edge": 40} and dict(ours.crop_size) == {"height": 32, "width": 32}
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = next(images())
    assert_equal(ours(image)["pixel_values"][0], theirs(image)["pixel_values"][0])


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("normalised", [True, False])
def test_the_fast_path_equals_the_exact_one(name, normalised):
    """The bound is one grey level; measured is no difference at all."""
    cls, options = CLASSES[name]
    options = options | ({} if normalised else {"do_normalize": False})
    exact, fast = (
        made.from_backbone(cls(**options)) for made in (CaptioningImageProcessor, CaptioningImageProcessorFast)
    )
    for image in images():
        levels = [made(image, return_tensors="pt").pixel_values for made in (exact, fast)]
        assert levels[0].dtype == levels[1].dtype == torch.float32
        assert_equal(*levels)
    same_size = [image.resize((40, 50)) for image in images()]  # one group, resized together
    assert_equal(*(made(same_size, return_tensors="pt").pixel_values for made in (exact, fast)))


@pytest.mark.parametrize(
    "config",
    [
        {"input_size": (3, 32, 32), "crop_pct": 0.875, "interpolation": "bicubic", "crop_mode": "center"},
        {"input_size": (3, 32, 32), "crop_pct": 1.0, "interpolation": "bilinear"},
        {"input_size": (3, 32, 32), "crop_pct": 0.9, "interpolation": "bicubic", "crop_mode": "squash"},
        {"input_size": (3, 24, 32), "crop_pct": 1.0, "interpolation": "bilinear", "crop_mode": "squash"},
    ],
    ids=lambda config: f"{config.get('crop_mode', 'default')}-{config['crop_pct']}",
)
def test_timm_configurations(config):
    config = config | {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    theirs = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=config), is_training=False)
    ours = CaptioningImageProcessor.from_backbone(config)
    exact = 0
    for image in images([(64, 48), (72, 36), (36, 108), (40, 40), (53, 37), (101, 67)]):
        actual, expected = ours(image, return_tensors="pt").pixel_values[0], theirs(image)
        assert actual.shape == expected.shape == config["input_size"]
        shifts = [torch.roll(actual, (down, right), (1, 2)) for down in (0, -1) for right in (0, -1)]
        inside = (slice(None), slice(1, -1), slice(1, -1))
        assert any(torch.allclose(shifted[inside], expected[inside], atol=1e-5) for shifted in shifts)
        exact += torch.allclose(actual, expected, atol=1e-5)
    print(f"{exact} of 6 images equal, the others cut one pixel aside")
    assert exact >= 4 or config["crop_pct"] == 0.9  # where half of the rim, 1.5, is rounded otherwise in every image


def test_a_timm_model_and_its_wrapper_give_the_same_settings():
    model = timm.create_model("test_vit", pretrained=False)
    settings = settings_of_backbone(timm.data.resolve_model_data_config(model))
    wrapper = transformers.TimmWrapperImageProcessor(model.pretrained_cfg, architecture="test_vit")
    assert settings == settings_of_backbone(wrapper)
    assert settings["crop_size"] == {"height": 160, "width": 160}


def test_the_real_backbone_on_real_photographs(material):
    folder, photographs = material / "mobilenetv2" / "hf", sorted((material / "coco" / "images").glob("*.jpg"))
    if not folder.is_dir() or not photographs:
        pytest.skip(f"no MobileNetV2 or COCO photographs in {material}")
    ours = CaptioningImageProcessor.from_backbone(folder)
    fast = CaptioningImageProcessorFast.from_backbone(folder)
    theirs = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    grey = [file for file in photographs if PIL.Image.open(file).mode == "L"]
    chosen = sorted({*grey, *photographs[::8]})
    opened = [PIL.Image.open(file).convert("RGB") for file in chosen]
    actual, expected = ours(chosen, return_tensors="pt").pixel_values, theirs(opened, return_tensors="pt").pixel_values
    assert grey and actual.shape == (len(chosen), 3, 224, 224)
    assert_equal(actual, expected)
    assert_equal(fast(chosen, return_tensors="pt").pixel_values, expected)
    print(f"{len(chosen)} photographs ({len(grey)} grey): exact and fast path equal to transformers'")
    timm_settings = {"input_size": (3, 224, 224), "mean": ours.image_mean, "std": ours.image_std, "crop_pct": 0.875}
    with_timm = CaptioningImageProcessor.from_backbone(timm_settings | {"interpolation": "bilinear"})
    assert_equal(with_timm(chosen[:4], return_tensors="pt").pixel_values, actual[:4])


@pytest.mark.parametrize("cls", [CaptioningImageProcessor, CaptioningImageProcessorFast])
def test_all_kinds_of_input_give_one_result(cls, tmp_path):
    image = next(images())
    image.save(tmp_path / "p.png")
    array = np.array(image)
    prepare = cls(size={"height": 16, "width": 16})
    expected = prepare(image, return_tensors="pt").pixel_values
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for one in (str(tmp_path / "p.png"), tmp_path / "p.png", array, tensor, tensor.permute(1, 2, 0), tensor / 255):
        for batch in (one, [one]):
            assert_equal(prepare(batch, return_tensors="pt").pixel_values, expected)
    many = [tmp_path / "p.png", array, [image, tensor]]
    assert_equal(prepare(many, return_tensors="pt").pixel_values, expected.expand(4, -1, -1, -1))
    for stacked in (np.stack([array, array]), torch.stack([tensor, tensor])):
        assert_equal(prepare(stacked, return_tensors="pt").pixel_values, expected.expand(2, -1, -1, -1))


def test_jpegs_are_decoded_as_by_pillow(tmp_path, monkeypatch):
    """The same pixels; Pillow reads those that torchvision decodes differently (CMYK, rotated, truncated)."""
    plain, other = images([(301, 517), (64, 48)])
    on_its_side = PIL.Image.Exif()
    on_its_side[PIL.ExifTags.Base.Orientation] = 6
    kinds = {
        "plain": (plain, {"quality": 75}, 1),
        "progressive": (other, {"progressive": True, "subsampling": 0, "quality": 90}, 1),
        "grey": (plain.convert("L"), {}, 1),
        "upright": (other, {"exif": PIL.Image.Exif()}, 1),
        "cmyk": (plain.convert("CMYK"), {}, 0),
        "on_its_side": (plain, {"exif": on_its_side}, 0),
    }
    exact, fast = (made(do_resize=False) for made in (CaptioningImageProcessor, CaptioningImageProcessorFast))
    decode, decoded = image_processing_captioning.decode_jpeg, []
    monkeypatch.setattr(image_processing_captioning, "decode_jpeg", lambda *given: decoded.append(1) or decode(*given))
    for name, (image, options, count) in kinds.items():
        path = tmp_path / f"{name}.jpg"
        image.save(path, **options)
        expected = exact(path, return_tensors="pt").pixel_values
        for source in (path, str(path), path.read_bytes()):
            decoded.clear()
            assert_equal(fast(source, return_tensors="pt").pixel_values, expected)
            assert len(decoded) == count, name
    cut = tmp_path / "cut.jpg"
    cut.write_bytes((tmp_path / "plain.jpg").read_bytes()[:-200])
    with pytest.raises(ValueError, match="cut.jpg cannot be read"):
        fast(cut)


def test_axes_as_stated():
    narrow = np.random.default_rng(0).integers(0, 255, (3, 20, 3), dtype=np.uint8)  # both readings are possible
    for cls in (CaptioningImageProcessor, CaptioningImageProcessorFast):
        prepare = cls(do_resize=False, do_normalize=False)
        shapes = {
            axes: prepare(narrow, input_data_format=axes, return_tensors="pt").pixel_values.shape[1:]
            for axes in ("channels_first", "channels_last")
        }
        assert shapes == {"channels_first": (3, 20, 3), "channels_last": (3, 3, 20)}


def test_saved_settings_are_the_same_for_both(tmp_path):
    settings = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": 18, "image_mean": [0.1, 0.2, 0.3]}
    files = {}
    for cls in (CaptioningImageProcessor, CaptioningImageProcessorFast):
        cls(**settings).save_pretrained(tmp_path / cls.__name__)
        files[cls] = (tmp_path / cls.__name__ / "preprocessor_config.json").read_text()
    assert len(set(files.values())) == 1
    image = next(images())
    for cls in files:
        again = cls.from_pretrained(tmp_path / "CaptioningImageProcessor")
        assert_equal(again(image)["pixel_values"], cls(**settings)(image)["pixel_values"])


def test_settings_override_the_backbones():
    ours = CaptioningImageProcessor.from_backbone(
        transformers.ViTImageProcessorPil(), size={"height": 32, "width": 48}
    )
    assert ours(next(images()), return_tensors="pt").pixel_values.shape == (1, 3, 32, 48)
    assert ours(next(images()), return_tensors="pt", size={"height": 8, "width": 8}).pixel_values.shape[-1] == 8


def test_errors():
    with pytest.raises(TypeError, match="sise"):
        CaptioningImageProcessor(sise=3)
    with pytest.raises(TypeError, match="sise"):
        CaptioningImageProcessor.from_backbone(transformers.ViTImageProcessorPil(), sise=3)
    with pytest.raises(ValueError, match="GroundingDinoImageProcessor prepares images in its own way"):
        CaptioningImageProcessor.from_backbone(transformers.GroundingDinoImageProcessorPil())
    mean = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    with pytest.raises(ValueError, match="lacks"):
        CaptioningImageProcessor.from_backbone({"input_size": (3, 2, 2)})
    with pytest.raises(ValueError, match="1 channels"):
        CaptioningImageProcessor.from_backbone({"input_size": (1, 32, 32)} | mean)
    with pytest.raises(ValueError, match="square"):
        CaptioningImageProcessor.from_backbone({"input_size": (3, 32, 16)} | mean)
    with pytest.raises(ValueError, match="crop_mode 'border'"):
        CaptioningImageProcessor.from_backbone({"input_size": (3, 32, 32), "crop_mode": "border"} | mean)
    with pytest.raises(ValueError, match="interpolation"):
        CaptioningImageProcessor.from_backbone({"input_size": (3, 32, 32), "interpolation": "random"} | mean)


@pytest.mark.parametrize("made", [CaptioningImageProcessor, CaptioningImageProcessorFast])
def test_settings_of_a_later_version_are_kept(made, tmp_path):
    """A stored file with a setting that this version does not know; a typed one is refused."""
    later = made(size={"height": 8, "width": 8})
    later.new_setting = 3
    later.save_pretrained(tmp_path)
    for again in (made.from_pretrained(tmp_path), transformers.AutoImageProcessor.from_pretrained(tmp_path)):
        assert again.new_setting == 3 and again.to_dict()["new_setting"] == 3
        actual, expected = (one(next(images()), return_tensors="np")["pixel_values"] for one in (again, later))
        assert_equal(actual, expected)
    with pytest.raises(TypeError, match=r"has no settings \['new_setting'\]"):
        made(new_setting=3)
    for name in ("resize", "backend", "__class__", "__dict__"):
        with pytest.raises(TypeError, match=f"has no settings .*{name}"):
            made.from_dict({name: 3})
