"""Image processors with the settings of a vision backbone: an exact one (PIL) and a fast one (torchvision)."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import PIL.Image
import torch
from transformers import AutoImageProcessor, BatchFeature
from transformers.image_processing_backends import PilBackend, TorchvisionBackend
from transformers.image_processing_utils import BaseImageProcessor
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.image_utils import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    ChannelDimension,
    PILImageResampling,
    SizeDict,
    get_image_size_for_max_height_width,
)
from transformers.processing_utils import ImagesKwargs
from transformers.utils import logging

from .image_reading import open_image, read_image, turn_of

logger = logging.get_logger(__name__)

try:  # needed by the fast path only
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:
    decode_jpeg = None

JPEG_BEGIN, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# The settings that are copied from a vision model's own processor.
BACKBONE_FIELDS = (
    "do_resize",
    "size",
    "resample",
    "do_center_crop",
    "crop_size",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
)
# Steps that a processor must inherit unchanged; otherwise these settings do not describe it.
MAX_PREPARED = 2**26  # pixels of a prepared image: more are a fault of the settings, or of a very thin image
BACKBONE_STEPS = ("resize", "center_crop", "rescale", "normalize", "process_image", "_preprocess")
# Processors with steps of their own that equal the settings above (for images, not for segmentation maps).
PLAIN_PROCESSORS = ("BeitImageProcessor", "MobileNetV2ImageProcessor", "SegformerImageProcessor")
CROP_FRACTION_PROCESSORS = ("ConvNextImageProcessor",)
# Processors of detectors, with what their sizes are multiples of: proportions are kept, and batches padded.
DETECTOR_PROCESSORS: dict[str, int | None] = {
    **dict.fromkeys(("DetrImageProcessor", "ConditionalDetrImageProcessor", "DeformableDetrImageProcessor")),
    **dict.fromkeys(("RTDetrImageProcessor", "RfDetrImageProcessor")),
    "YolosImageProcessor": 16,
}
# Keys of saved settings that do not concern images.
LOADED_KEYS = {"auto_map", "feature_extractor_type", "image_processor_type", "processor_class"}
TIMM_RESAMPLING = {
    "nearest": PILImageResampling.NEAREST,
    "bilinear": PILImageResampling.BILINEAR,
    "bicubic": PILImageResampling.BICUBIC,
    "box": PILImageResampling.BOX,
    "hamming": PILImageResampling.HAMMING,
    "lanczos": PILImageResampling.LANCZOS,
}


def settings_of_backbone(backbone: str | os.PathLike[str] | Mapping[str, Any] | BaseImageProcessor) -> dict[str, Any]:
    """Return the image processor settings (size, crop, mean, ...) of a vision backbone.

    Args:
        backbone: directory or Hub name of a transformers vision model, its image processor, or the data
            configuration of a timm model (`timm.data.resolve_model_data_config(model)`, or its `pretrained_cfg`).

    Returns:
        Keyword arguments for `CaptioningImageProcessor`.

    Raises:
        ValueError: the backbone prepares images in a way that these settings cannot express.
    """
    if isinstance(backbone, Mapping):
        return _settings_of_timm(backbone)
    if isinstance(backbone, (str, os.PathLike)):
        backbone = AutoImageProcessor.from_pretrained(backbone, backend="pil")
    data_config = getattr(backbone, "data_config", None)  # transformers' wrapper of timm models
    return _settings_of_timm(data_config) if data_config is not None else _settings_of_transformers(backbone)


def _settings_of_transformers(processor: Any) -> dict[str, Any]:
    name = type(processor).__name__.removesuffix("Pil").removesuffix("Fast")
    values = {field: getattr(processor, field, None) for field in BACKBONE_FIELDS}
    settings: dict[str, Any] = {
        field: dict(value) if isinstance(value, SizeDict) else value for field, value in values.items()
    }
    if name in CROP_FRACTION_PROCESSORS:
        settings.update(_crop_of_fraction(settings["size"], processor.crop_pct))
    elif name in DETECTOR_PROCESSORS:
        settings.update(_padding_of_detector(settings["size"], processor.pad_size, DETECTOR_PROCESSORS[name]))
    elif name not in PLAIN_PROCESSORS and not isinstance(processor, _ImageSteps):
        base = TorchvisionBackend if isinstance(processor, TorchvisionBackend) else PilBackend
        own_steps = [step for step in BACKBONE_STEPS if getattr(type(processor), step, None) != getattr(base, step)]
        if own_steps:
            raise ValueError(
                f"{name} prepares images in its own way ({', '.join(own_steps)}), which size, crop, mean and "
                "standard deviation cannot express. Build one by hand: CaptioningImageProcessor(size=..., "
                "crop_size=..., image_mean=..., image_std=...)."
            )
    return {field: value for field, value in settings.items() if value is not None}


def _crop_of_fraction(size: Mapping[str, int], fraction: float) -> dict[str, Any]:
    """Return ConvNeXt's size and crop: a central crop of this fraction below 384 pixels, else the stretched image."""
    edge = size["shortest_edge"]
    square = {"height": edge, "width": edge}
    if edge >= 384:
        return {"size": square}
    return {"size": {"shortest_edge": int(edge / fraction)}, "do_center_crop": True, "crop_size": square}


def _padding_of_detector(
    size: Mapping[str, int | None], pad_size: Any, multiple: int | None
) -> dict[str, dict[str, int] | bool | int | None]:
    """Return settings that pad images of different sizes to one size; none if they are resized to one."""
    edge = size.get("longest_edge")
    if edge is None:
        return {}
    canvas = {"height": edge, "width": edge} if pad_size is None else dict(pad_size)
    return {"do_pad": True, "pad_size": canvas, "size_divisor": multiple}


def _settings_of_timm(data_config: Mapping[str, Any]) -> dict[str, Any]:
    missing = {"input_size", "mean", "std"} - data_config.keys()
    if missing:
        raise ValueError(
            f"The data configuration lacks {sorted(missing)}; it has {sorted(data_config)}. Pass what "
            "timm.data.resolve_model_data_config(model) returns, or the directory of a transformers vision model."
        )
    channels, height, width = data_config["input_size"]
    if channels != 3:
        raise ValueError(f"The backbone reads {channels} channels (input_size {data_config['input_size']}), not 3.")
    fraction = data_config.get("crop_pct") or 0.875
    scaled = {"height": math.floor(height / fraction), "width": math.floor(width / fraction)}
    mode = data_config.get("crop_mode") or "center"
    if mode == "center":
        if height != width:
            raise ValueError(f"crop_mode 'center' needs a square input_size, got {height} x {width}.")
        scaled = {"shortest_edge": scaled["height"]}
    elif mode != "squash":
        raise ValueError(f"crop_mode {mode!r} is not supported: expected 'center' or 'squash'.")
    interpolation = data_config.get("interpolation") or "bicubic"
    if interpolation not in TIMM_RESAMPLING:
        raise ValueError(f"interpolation {interpolation!r} is unknown: expected one of {sorted(TIMM_RESAMPLING)}.")
    return {
        "size": scaled,
        "resample": TIMM_RESAMPLING[interpolation],
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "image_mean": list(data_config["mean"]),
        "image_std": list(data_config["std"]),
    }


class CaptioningImagesKwargs(ImagesKwargs, total=False):
    """Keyword arguments of transformers' image processors, and those that this library adds.

    size_divisor (`int`, *optional*):
        Resize to multiples of this number of pixels, rounded down (YOLOS: 16).
    """

    size_divisor: int | None


class _ImageSteps:
    """Settings and loading that the exact and the fast image processor share."""

    valid_kwargs: Any = CaptioningImagesKwargs
    size_divisor: int | None = None
    do_convert_rgb = True
    do_resize = True
    size = {"height": 224, "width": 224}
    resample = PILImageResampling.BICUBIC
    do_center_crop = False
    crop_size = {"height": 224, "width": 224}
    do_rescale = True
    do_normalize = True
    image_mean = list(IMAGENET_DEFAULT_MEAN)
    image_std = list(IMAGENET_DEFAULT_STD)

    def __init__(self, **kwargs: Any) -> None:
        valid_names = self.valid_kwargs.__annotations__.keys() | LOADED_KEYS
        if unknown := sorted(kwargs.keys() - valid_names):
            raise TypeError(
                f"{type(self).__name__} has no settings {unknown}; expected some of {sorted(valid_names)}."
            )
        super().__init__(**kwargs)

    @classmethod
    def from_dict(cls, image_processor_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a processor from stored settings; unknown ones are kept as attributes, with a warning.

        Raises:
            TypeError: a stored setting has the name of a method or attribute that is no setting.
        """
        stored, valid_names = dict(image_processor_dict), cls.valid_kwargs.__annotations__.keys() | LOADED_KEYS
        unknown = {name: stored.pop(name) for name in sorted(stored.keys() - valid_names) if not hasattr(cls, name)}
        built = super().from_dict(stored, **kwargs)  # type: ignore[misc]
        if unknown:
            logger.warning_once(f"Settings of a different version of {cls.__name__} have no effect: {list(unknown)}.")
            vars(built[0] if isinstance(built, tuple) else built).update(unknown)
        return built

    @classmethod
    def from_backbone(
        cls, backbone: str | os.PathLike[str] | Mapping[str, Any] | BaseImageProcessor, **settings: Any
    ) -> Self:
        """Build a processor with the image settings of a vision backbone.

        Args:
            backbone: as in `settings_of_backbone`: a directory or Hub name, an image processor, or the data
                configuration of a timm model.
            **settings: settings of this class that replace those of the backbone.

        Raises:
            ValueError: these settings cannot express what the backbone does.
        """
        return cls(**{**settings_of_backbone(backbone), **settings})

    def fetch_images(self, images: Any) -> Any:
        """Return images unchanged; `process_image` reads them with mode, orientation and name."""
        return images

    def _preprocess(
        self,
        images: list[Any],
        do_pad: bool | None = None,
        pad_size: SizeDict | None = None,
        size_divisor: int | None = None,
        return_tensors: Any = None,
        **settings: Any,
    ) -> BatchFeature:
        """Convert images to `pixel_values`, and to a `pixel_mask` if they are padded."""
        if size_divisor and settings["do_resize"]:
            images = [
                self._at_multiples(image, settings["size"], settings["resample"], size_divisor) for image in images
            ]
            settings["do_resize"] = False
        last = {} if do_pad else {"return_tensors": return_tensors}
        settings |= {"do_pad": False, "pad_size": None, "return_tensors": None} | last
        prepared = super()._preprocess(images, **settings)  # type: ignore[misc]
        if not do_pad:
            return prepared
        padded, masks = self.pad(prepared["pixel_values"], pad_size=pad_size, return_mask=True)  # type: ignore[attr-defined]
        return BatchFeature({"pixel_values": padded, "pixel_mask": masks}, tensor_type=return_tensors)

    def _at_multiples(self, image: Any, size: SizeDict, resample: Any, divisor: int) -> Any:
        """Resize `[3, H, W]` to the largest multiples of `divisor` within `size`."""
        height, width = (side - side % divisor for side in _resized(image.shape[-2:], size))
        target, is_tensor = SizeDict(height=height, width=width), isinstance(image, torch.Tensor)
        resized = self.resize(image[None] if is_tensor else image, size=target, resample=resample)  # type: ignore[attr-defined]
        return resized[0] if is_tensor else resized

    def _prepare_images_structure(self, images: Any, expected_ndims: int = 3) -> list[Any]:
        if isinstance(images, (list, tuple)):
            return [image for nested in images for image in self._prepare_images_structure(nested)]
        if isinstance(images, (np.ndarray, torch.Tensor)) and images.ndim == expected_ndims + 1:
            return list(images)
        return [images]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings under the class name of the exact processor; exact or fast is chosen when loading."""
        saved = super().to_dict()  # type: ignore[misc]
        saved["image_processor_type"] = saved["image_processor_type"].removesuffix("Fast")
        if "AutoImageProcessor" in (saved.get("auto_map") or {}):
            reference = saved["auto_map"]["AutoImageProcessor"].removesuffix("Fast")
            saved["auto_map"] = {**saved["auto_map"], "AutoImageProcessor": reference}
        return saved


class CaptioningImageProcessor(_ImageSteps, PilBackend):
    """Image processor that returns `pixel_values` `[B, 3, H, W]`, computed exactly in PIL.

    With `do_pad`, images lie in the upper left corner of a canvas of `pad_size`, and `pixel_mask` `[B, H, W]` is 1 at
    their pixels. Detectors that keep proportions need it.

    It accepts everything that `read_image` reads: paths, URLs, PIL images of any mode, arrays and tensors, single, in
    lists, or as arrays `[B, ...]`. Arrays of floats are read as fractions or as levels by their values, so
    `do_rescale` applies to them too.

    Args:
        size: `{"height", "width"}` (stretched), `{"shortest_edge"}` (proportions kept) or `{"max_height",
            "max_width"}` (fits within), in pixels. Default 224 x 224.
        resample: a `PIL.Image.Resampling`. Default bicubic.
        do_center_crop, crop_size: crop the centre afterwards. Default off.
        do_rescale, rescale_factor: multiply levels by 1/255.
        do_normalize, image_mean, image_std: per channel; default ImageNet's.
        do_pad, pad_size: pad with zeros below and on the right, to `{"height", "width"}`. Default off.
        size_divisor: resize to multiples of this number, rounded down. Default None.

    The result is always RGB. You can pass all settings for a single call too. `from_backbone` copies them from a
    vision model. With a timm configuration the crop may differ by one pixel: if the margin is odd, timm rounds half of
    it to even, transformers and this class round down.

    Examples:
        >>> import PIL.Image
        >>> from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
        >>> prepare = CaptioningImageProcessor(size={"height": 32, "width": 32})
        >>> prepare(PIL.Image.new("L", (80, 60)), return_tensors="pt")["pixel_values"].shape
        torch.Size([1, 3, 32, 32])
    """

    def process_image(
        self,
        image: Any,
        do_convert_rgb: bool | None = None,
        input_data_format: str | ChannelDimension | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Read one image as uint8 `[3, H, W]`."""
        return np.moveaxis(np.asarray(read_image(_channels_last(image, input_data_format))), -1, 0)


class CaptioningImageProcessorFast(_ImageSteps, TorchvisionBackend):
    """Image processor with the results of `CaptioningImageProcessor`, on torch tensors; on a GPU with `device="cuda"`.

    torchvision decodes JPEG files, with the same library and the same values as Pillow.

    On the CPU, results are equal. On an accelerator, torchvision resizes instead of Pillow, and results differ by grey
    levels (torchvision rounds once, Pillow after each axis).

    Saved settings name the exact class; load them into this one with
    `CaptioningImageProcessorFast.from_pretrained(directory)`.
    """

    def resize(  # type: ignore[override]
        self, image: torch.Tensor, size: SizeDict, resample: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        """Resize uint8 `[B, 3, H, W]`; with Pillow on the CPU.

        torch's own antialiased kernels are faster, but differ from the exact path by several grey levels.
        """
        if image.device.type != "cpu" or image.dtype != torch.uint8:
            return super().resize(image, size, resample, **kwargs)
        height, width = _resized(image.shape[-2:], size)
        pil_images = [PIL.Image.fromarray(pixels) for pixels in image.movedim(-3, -1).contiguous().numpy()]
        resized = np.stack([np.asarray(pil_image.resize((width, height), resample)) for pil_image in pil_images])
        return torch.from_numpy(resized).movedim(-1, -3).contiguous()

    def center_crop(self, image: torch.Tensor, size: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        """Crop the centre; if the crop is larger than the image, pad with black, the odd line above and left.

        Raises:
            ValueError: the crop has none or too many pixels.
        """
        _require_possible(size.height, size.width, f"crop_size={dict(size)}")
        for axis, target in ((-2, size.height), (-1, size.width)):
            missing = max(target - image.shape[axis], 0)
            rim = [(missing + 1) // 2, missing // 2]
            image = torch.nn.functional.pad(image, rim if axis == -1 else [0, 0, *rim])
            image = image.narrow(axis, (image.shape[axis] - target) // 2, target)
        return image

    def rescale_and_normalize(
        self,
        images: torch.Tensor,
        do_rescale: bool,
        rescale_factor: float,
        do_normalize: bool,
        image_mean: Any,
        image_std: Any,
    ) -> torch.Tensor:
        """Rescale and normalise in the order and precision of the exact processor, to the last bit."""
        if do_rescale:
            images = (images.double() * rescale_factor).float()
        if do_normalize:
            mean, std = (
                images.new_tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (image_mean, image_std)
            )
            images = (images.float() - mean) / std
        return images

    def process_image(
        self,
        image: Any,
        do_convert_rgb: bool | None = None,
        input_data_format: str | ChannelDimension | None = None,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Read one image as uint8 `[3, H, W]`; a tensor of this form stays on its device."""
        is_tensor = isinstance(image, torch.Tensor) and input_data_format not in (
            ChannelDimension.LAST,
            "channels_last",
        )
        if not (is_tensor and image.dtype == torch.uint8 and image.ndim == image.shape[0] == 3):
            decoded = decoded_jpeg(image)
            if decoded is None:
                levels = np.array(read_image(_channels_last(image, input_data_format)))
                decoded = torch.from_numpy(levels).permute(
                    2, 0, 1
                )  # a view: the next steps read the channels of a pixel together
            image = decoded
        return image if device is None else image.to(device)


def decoded_jpeg(source: Any) -> torch.Tensor | None:
    """Decode a JPEG file to uint8 `[3, H, W]`; return None for all else, which `read_image` then reads or rejects.

    Args:
        source: a path or the bytes of a file. The result is None for any other source, for rotated images, for CMYK
            and for truncated files.
    """
    if isinstance(source, (str, os.PathLike)) and os.path.isfile(source):
        source = Path(source).read_bytes()
    # Pillow refuses truncated files; the decoder fills the missing part with grey.
    if not (isinstance(source, bytes) and source.startswith(JPEG_BEGIN) and source.endswith(JPEG_END)):
        return None
    try:
        with open_image(io.BytesIO(source)) as header:
            is_plain = header.format == "JPEG" and header.mode in ("RGB", "L")
            if not is_plain or turn_of(header) is not None:
                return None
        return decode_jpeg(torch.frombuffer(bytearray(source), dtype=torch.uint8), ImageReadMode.RGB)
    except Exception:  # whatever it is, `read_image` names it
        return None


def _resized(shape: Sequence[int], size: SizeDict) -> tuple[int, int]:
    """Return the height and width that resizing by `size` gives, by the rules of transformers.

    Raises:
        ValueError: the size is incomplete, or the image would have none or too many pixels.
    """
    height, width = _by_rule(shape, size)
    _require_possible(height, width, f"size={dict(size)}")
    return height, width


def _require_possible(height: int, width: int, rule: str) -> None:
    if not 0 < height * width <= MAX_PREPARED:
        raise ValueError(
            f"{rule} would make an image of {width:,} x {height:,} pixels, expected 1 to {MAX_PREPARED:,} pixels. "
            "The image is too thin, or the image processor of the captioner is damaged."
        )


def _by_rule(shape: Sequence[int], size: SizeDict) -> tuple[int, int]:
    height, width = shape
    if size.shortest_edge and size.longest_edge:
        return get_size_with_aspect_ratio((height, width), size.shortest_edge, size.longest_edge)
    if size.shortest_edge:
        edge, short = size.shortest_edge, min(height, width)
        return (edge, int(edge * width / short)) if height == short else (int(edge * height / short), edge)
    if size.max_height and size.max_width:
        return get_image_size_for_max_height_width((height, width), size.max_height, size.max_width)
    if size.height and size.width:
        return size.height, size.width
    raise ValueError(
        f"size={dict(size)} is incomplete; give height and width, shortest_edge, or max_height and max_width."
    )


def _channels_last(image: Any, input_data_format: str | ChannelDimension | None) -> Any:
    """Move the channels of an image last if `input_data_format` says that they are first."""
    if input_data_format in (ChannelDimension.FIRST, "channels_first") and isinstance(
        image, (np.ndarray, torch.Tensor)
    ):
        return image.moveaxis(0, -1) if isinstance(image, torch.Tensor) else np.moveaxis(image, 0, -1)
    return image
