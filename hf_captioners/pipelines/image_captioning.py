"""Pipeline `image-captioning`: captions of images without a prompt.

It supports the captioners of this library and those of transformers, see `COMPARED` in `instructed_checks.py`.
Checkpoints contain a copy of this file and of `image_reading.py`, so `pipeline(model=directory,
trust_remote_code=True)` works without this library.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, GenerationConfig, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import pad_collate_fn

from hf_captioners.processing.image_reading import download_image, read_image

logger = logging.getLogger(__name__)
TASK = "image-captioning"
# The task inside a checkpoint has a different name than the registered task: transformers prefers the checkpoint's
# entry, so `pipeline("image-captioning", model)` would require `trust_remote_code` even with this library installed.
TASK_IN_CHECKPOINT = "captioning"
# Captioners of transformers that read an image alone, and begin captions with a token of their own.
IMAGE_CAPTIONERS = ("blip", "git", "vision-encoder-decoder")
MAX_INSTRUCTED_TOKENS = 256  # new tokens of a caption by an instruction, which may ask for a paragraph
# Checks and inputs of other models of transformers. Checkpoints contain no copy: they are never of such a model.
OF_OTHER_MODELS = "hf_captioners.pipelines.instructed_checks"
CONFIDENCE = "hf_captioners.confidence.assessing"
# Files that are part of checkpoints find each other by relative names.
LIBRARY_IMPORT = re.compile(r"^from hf_captioners\.processing\.", re.MULTILINE)


class ImageCaptioningPipeline(Pipeline):
    """Pipeline that captions images.

    ```python
    captioner = pipeline("image-captioning", model="my_captioner")
    captioner("photo.jpg")  # [{"generated_text": "two dogs on a beach"}]
    captioner(["photo.jpg", "other.png"], batch_size=2)  # one list per image
    captioner("photo.jpg", num_beams=3, num_return_sequences=3, return_scores=True)
    captioner("photo.jpg", prompt="a photo of")
    captioner([["photo.jpg", "other.png"], ["photo.jpg"]])  # two studies: one caption per study
    ```

    Arguments of a call. `pipeline()` takes them as defaults:
        prompt: text that the captions begin with.
        instruction: what a model that follows instructions is asked, for example `"What is in the foreground?"`; no
            part of captions; default: that of its family.
        timeout: seconds for the whole download of an image; default 60.
        max_bytes: largest download of an image; default 64 MiB.
        return_scores: add `score`, the sum of the log-probabilities of the generated tokens, with the end token and
            without the prompt, before temperature and other processing of logits.
        return_token_scores: add `tokens` and `token_scores`, their log-probabilities.
        return_confidence: add `confidence`, the probability that people would use all content words of the caption,
            and `words`, a list with the `confidence` of each; of captioners that were calibrated, with this library.
            True, or `"samples"`: from sampled captions too.
        return_ended: of models that follow instructions, add `ended`: False if the caption has no end token, because
            `max_new_tokens` were generated.
        seed: where captions are sampled, a batch of the same images gets the same captions with the same seed. None:
            the random numbers are those of torch.
        generate_kwargs: options of `generate()` as a dictionary; each may also be passed by name.

    Argument of `pipeline()` only:
        packed_weights: on a CPU, a captioner of this library generates with copies of its weights that are faster,
            see `optimize_for_generation`: `"float32"`, `"float16"`, `"bfloat16"`, `"int8"`, or `"plain"`: without
            copies. Default, if the captioner's weights are float32: `"float16"` where images are captioned one at a
            time, which is the default of `batch_size`, and `"float32"` otherwise.

    An image is a path, an `http(s)` URL, base64 text, a PIL image, or an array or tensor `[H, W, C]`. Several images
    are a list, an array `[B, H, W, C]`, a generator, a `KeyDataset`, or a `datasets.Dataset` with a column `image`.
    An item may be `{"image": ..., "prompt": ..., "instruction": ...}`. Captioners of this library also read
    regions, `{"features": ..., "boxes": ...}`, and studies of several views: a list within a list,
    `{"images": [...], "prompt": ...}`, or a data set with a column `images`.

    A call returns a list of dictionaries for one image: one per returned sequence, best first for beam search. It
    returns a list of such lists for a list, and an iterator over them for a generator or data set.

    Raises:
        ValueError: the model cannot generate or is not supported, a tokenizer or an image processor is missing, the
            prompts of a batch differ in length and the model does not support that, or a model is given an instruction
            that reads none.
    """

    model: Any
    processor: Any
    tokenizer: Any
    image_processor: Any

    _load_processor = None
    _load_tokenizer = None
    _load_image_processor = None
    _load_feature_extractor: Any = False
    _load_video_processor: Any = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=32)

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        tokenizer: Any = None,
        image_processor: Any = None,
        packed_weights: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not model.can_generate():
            raise ValueError(f"{type(model).__name__} cannot generate text; expected a captioner.")
        is_own = hasattr(model.config, "encoder_inputs")
        self.instructed: Any = None  # `InstructedInputs`
        self.is_unverified = False
        # Code of a checkpoint may call itself as a family does.
        reads_images = model.config.model_type in IMAGE_CAPTIONERS and not has_own_code(model)
        if not is_own and not reads_images:
            module = importlib.import_module(OF_OTHER_MODELS)
            self.instructed, self.is_unverified = module.inputs_of(model, processor, has_own_code(model))
        if processor is not None:  # the base class takes tokenizer and image processor from it
            tokenizer = image_processor = None
        if self.instructed is not None and self.instructed.takes_instruction:
            tokens = self.instructed.tokens_left(MAX_INSTRUCTED_TOKENS)
            self._default_generation_config = GenerationConfig(max_new_tokens=tokens)
        super().__init__(
            model=model, processor=processor, tokenizer=tokenizer, image_processor=image_processor, **kwargs
        )
        for name in ("tokenizer", "image_processor"):
            if getattr(self, name) is None:
                raise ValueError(f"The model has no {name}; pass `{name}=` or `processor=`.")
        if self.is_unverified:
            module.require_consistent(model, self.instructed)
            logger.warning(
                f"{model.name_or_path} is a {model.config.model_type}, which was not compared with transformers: its "
                "captions are unverified. It passed the checks of docs/other_models.md."
            )
        self.pack_weights(packed_weights, one_at_a_time=self._batch_size in (None, 1))

    def pack_weights(
        self, weights: str | None = None, drop_plain: bool = False, *, one_at_a_time: bool = False
    ) -> None:
        """Pack the model's weights for faster generation on a CPU.

        Args:
            weights: see `packed_weights` of the class; None keeps those that the captioner has.
            drop_plain: see `optimize_for_generation`.
            one_at_a_time: pack a captioner that has no packed weights as float16 where `weights` is None: products
                of a few rows are limited by how fast memory is read, those of larger batches are not.

        Raises:
            ValueError: the captioner has no packed weights of this kind.
        """
        optimize = getattr(self.model, "optimize_for_generation", None)
        if optimize is None:
            if weights not in (None, "plain"):
                raise ValueError(
                    f"`packed_weights` is {weights!r}, and a {type(self.model).__name__} is no captioner of this "
                    "library: leave it out."
                )
        elif weights == "plain":
            self.model.restore_weights()
        elif weights is not None or (self.model.dtype == torch.float32 and self.model.device.type == "cpu"):
            # Code of a checkpoint may be of an earlier version.
            default = "float16" if one_at_a_time and "float16" in getattr(self.model, "packings", ()) else "float32"
            optimize(weights or self.model.packed_weights or default, drop_plain)

    @property
    def _is_native(self) -> bool:
        """True if the processor is one of this library, which encodes regions and prompts."""
        return is_native_processor(self.processor)

    def _sanitize_parameters(
        self,
        prompt: str | None = None,
        instruction: str | None = None,
        timeout: float | None = None,
        max_bytes: float | None = None,
        return_scores: bool | None = None,
        return_token_scores: bool | None = None,
        return_ended: bool | None = None,
        seed: int | None = None,
        generate_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if twice := sorted((generate_kwargs or {}).keys() & options.keys()):
            raise ValueError(f"{twice} were passed both in `generate_kwargs` and by name; pass each once.")
        self.require_instruction_read(instruction)
        reading = {"prompt": prompt, "instruction": instruction, "timeout": timeout, "max_bytes": max_bytes}
        scoring = {"return_scores": return_scores, "return_token_scores": return_token_scores}
        scoring["return_ended"] = return_ended
        reading = {name: value for name, value in reading.items() if value is not None}
        scoring = {name: value for name, value in scoring.items() if value is not None}
        drawing = {} if seed is None else {"seed": seed}
        return reading, {**scoring, **drawing, **(generate_kwargs or {}), **options}, scoring

    def __call__(self, images: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Caption one or several images; for the arguments see the class."""
        if isinstance(images, tuple) or (isinstance(images, (np.ndarray, torch.Tensor)) and images.ndim == 4):
            images = list(images)
        elif hasattr(images, "column_names"):
            images = _column_of_images(images)
        elif isinstance(images, Iterator):
            images = (image for image in images)
        if isinstance(images, list) and any(isinstance(item, (list, tuple)) for item in images):
            images = [item if isinstance(item, (list, tuple, dict)) else [item] for item in images]
        if isinstance(images, list) and not images:
            return []
        if sure := kwargs.pop("return_confidence", None):
            return self._with_confidence(images, "search" if sure is True else sure, **kwargs)
        return super().__call__(images, **kwargs)

    def _with_confidence(self, images: Any, mode: str, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Caption images, and estimate the confidence of each caption."""
        try:
            module = importlib.import_module(CONFIDENCE)
        except ImportError as error:
            raise ImportError("`return_confidence` needs this library: pip install hf-captioners") from error
        if hasattr(images, "__getitem__") and hasattr(images, "__len__") and not isinstance(images, (list, str, dict)):
            is_array = isinstance(images, (np.ndarray, torch.Tensor))
            images = images if is_array else (images[place] for place in range(len(images)))
        size = batch_size or self._batch_size or 1
        return module.caption_with_confidence(self, images, mode, size, **kwargs)

    def preprocess(  # type: ignore[override]
        self,
        inputs: Any,
        prompt: str | None = None,
        instruction: str | None = None,
        timeout: float | None = None,
        max_bytes: float | None = None,
    ) -> dict[str, Any]:
        """Decode and prepare one image; `_forward` encodes the prompts of a batch together."""
        if isinstance(inputs, dict):
            item = inputs
        else:
            item = {"images" if isinstance(inputs, (list, tuple)) else "image": inputs}
        prompt = item.get("prompt", prompt)
        instruction = item.get("instruction", instruction)
        self.require_instruction_read(instruction)
        declared = self.processor.input_columns if self._is_native else {}
        # Not tensors yet: `_forward` pads the inputs of a batch together.
        columns = {name: item[name] for name in declared if name in item}
        if "images" in item and self._is_native:
            encoded = self._encode_views([fetch(view, timeout, max_bytes) for view in item["images"]])
        elif "image" not in item:
            if not (self._is_native and "features" in item):
                raise ValueError(f"An item has the keys {sorted(item)}; expected 'image' and optionally 'prompt'.")
            regions = {name: value for name, value in item.items() if name != "prompt" and value is not None}
            self.processor(regions=regions)  # a wrong item raises here, before it is in a batch
            return {"regions": Wrapped(regions), "prompt": prompt or "", "declared": {}}
        else:
            image = fetch(item["image"], timeout, max_bytes)
            if self.instructed is not None:
                request = self.instructed.request(read_image(image), instruction, prompt or "")
                return {"requests": Wrapped(request), "prompt": prompt or "", "declared": {}}
            if self._is_native:
                encoded = self.processor(images=image, return_tensors="pt")
            else:
                encoded = self.image_processor(upright_rgb(image), return_tensors="pt")
        return {**in_dtype(encoded, self.dtype), "prompt": prompt or "", "declared": columns}

    def prepare(self, image: Any, **options: Any) -> dict[str, Any]:
        """Decode one image and prepare it for the model.

        Args:
            image: see the class.
            **options: arguments of a call; those of generation and scores have no effect here.

        Returns:
            An item of `caption_prepared`.

        Raises:
            OSError, ValueError, TypeError: it cannot be read; image processors raise errors of further types.
        """
        return self.preprocess(image, **self._preprocess_params | self._sanitize_parameters(**options)[0])

    def require_instruction_read(self, instruction: str | None) -> None:
        """Raise an error if an instruction is passed to a captioner that reads none.

        Raises:
            ValueError: it does not.
        """
        if self.instructed is not None:
            self.instructed.require_instruction_read(instruction)
        elif instruction is not None:
            raise ValueError(
                f"`instruction` is {instruction!r}, and a {self.model.config.model_type} captioner reads images "
                "without an instruction. Leave it out; `prompt` is the beginning of captions."
            )

    def with_instruction(self, item: dict[str, Any], instruction: str) -> dict[str, Any]:
        """Replace the instruction in an item of `prepare` (models that follow instructions)."""
        return item | {"requests": Wrapped(item["requests"].value._replace(instruction=instruction))}

    def join_prepared(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Encode prepared items as one batch, for models that follow instructions; can run in a worker process.

        Args:
            items: results of `prepare`.

        Returns:
            Items of `caption_prepared` with one or more images each; the same items for other captioners.

        Raises:
            ValueError: the processor refuses an image; processors raise errors of further types.
        """
        if self.instructed is None or not items:
            return items
        return [
            {"encoded": Wrapped(encoded), "prompt": encoded.beginnings, "declared": [{}] * len(encoded.beginnings)}
            for encoded in self._encoded([item["requests"].value for item in items])
        ]

    def _encoded(self, requests: list[Any]) -> list[Any]:
        encoded = [self.instructed.encode(run) for run in self.instructed.runs(requests)]
        return [request._replace(tensors=in_dtype(request.tensors, self.dtype)) for request in encoded]

    def caption_prepared(self, items: list[dict[str, Any]], **options: Any) -> list[list[dict[str, Any]]]:
        """Caption prepared images as one batch.

        Args:
            items: one or more results of `prepare`, or the result of `join_prepared`.
            **options: arguments of a call.

        Returns:
            The records of each image; `[{"error": reason}]` of one for which the model reached no caption.
        """
        _, forward, scoring = self._sanitize_parameters(**options)
        features = self.feature_extractor or self.image_processor
        if len(items) > 1 and "encoded" in items[0]:
            return [records for item in items for records in self.caption_prepared([item], **options)]
        batch = items[0] if len(items) == 1 else pad_collate_fn(self.tokenizer, features)(items)
        output = self.forward(batch, **self._forward_params | forward)
        return [
            self._records({name: values[place : place + 1] for name, values in output.items()}, **scoring)
            for place in range(len(output["sequences"]))
        ]

    def _records(self, outputs: dict[str, Any], **scoring: Any) -> list[dict[str, Any]]:
        unfinished = () if self.instructed is None else self.instructed.unfinished
        try:
            return self.postprocess(outputs, **scoring)
        except unfinished as error:
            return [{"error": str(error)}]

    def _encode_views(self, views: list[Any]) -> Any:
        """Encode a study as `views` `[1, V, C, H, W]`; a batch pads `views`, unlike `pixel_values`, to equal V."""
        encoded = self.processor(images=[views], return_tensors="pt")
        pixel_values = encoded.pop("pixel_values")
        several = pixel_values.ndim == 5
        encoded["views"] = pixel_values if several else pixel_values[:, None]
        if "pixel_mask" in encoded and not several:
            encoded["pixel_mask"] = encoded["pixel_mask"][:, None]
        encoded["view_mask"] = torch.ones(1, len(views), dtype=torch.bool)
        return encoded

    def _forward(  # type: ignore[override]
        self,
        input_tensors: dict[str, Any],
        return_scores: bool = False,
        return_token_scores: bool = False,
        return_ended: bool = False,
        seed: int | None = None,
        **generate_kwargs: Any,
    ) -> Any:
        if "requests" in input_tensors and self.instructed is not None:
            scores: dict[str, Any] = {"return_scores": return_scores, "return_token_scores": return_token_scores}
            waiting = input_tensors["requests"]
            requests = [request.value for request in (waiting if isinstance(waiting, list) else [waiting])]
            items = self.join_prepared([{"requests": Wrapped(request)} for request in requests])
            return self.instructed.join(
                [self._forward(item, seed=seed, **scores, **generate_kwargs) for item in items]
            )
        prompts, declared = input_tensors.pop("prompt"), input_tensors.pop("declared")
        prompts, declared = ([prompts], [declared]) if isinstance(prompts, str) else (prompts, declared)
        batch = input_tensors.pop("encoded").value if "encoded" in input_tensors else None
        if batch is not None:
            input_tensors.update(self._ensure_tensor_on_device(batch.tensors, self.device))
        if "regions" in input_tensors:
            regions = input_tensors.pop("regions")
            entries = [entry.value for entry in (regions if isinstance(regions, list) else [regions])]
            encoded = in_dtype(self.processor(regions=entries, return_tensors="pt"), self.dtype)
            input_tensors.update(self._ensure_tensor_on_device(dict(encoded), self.device))
        if any(declared):
            rows = {name: [row.get(name) for row in declared] for name in declared[0]}
            encoded = in_dtype(self.processor(**rows, return_tensors="pt"), self.dtype)
            input_tensors.update(self._ensure_tensor_on_device(dict(encoded), self.device))
        if "views" in input_tensors:
            input_tensors["pixel_values"] = input_tensors.pop("views")
        scored = return_scores or return_token_scores
        record = {"return_dict_in_generate": True, "output_logits": scored}
        assisted = generate_kwargs.get("assistant_model") or generate_kwargs.get("prompt_lookup_num_tokens")
        if getattr(self.model, "returns_model_logprobs", False) and not assisted:
            record |= {"output_logits": False, "return_cache": False}
        options = self._prepare_generate_kwargs(generate_kwargs, **record)
        prompt_inputs = {} if batch is not None else self._encode_prompts(prompts)
        prompt_inputs = self._ensure_tensor_on_device(prompt_inputs, self.device)
        with seeded(seed, {**input_tensors, **prompt_inputs}):
            output = self.model.generate(**input_tensors, **prompt_inputs, **options)
        sequences = output.sequences
        if batch is not None and self.instructed is not None:
            sequences = self.instructed.without_prompt(sequences, input_tensors)
        by_image = (len(prompts), -1, sequences.shape[-1])
        result: dict[str, Any] = {"sequences": sequences.view(by_image)}  # [B, n, L]
        if batch is not None and self.instructed is not None:
            ends = torch.tensor(self._end_ids(options), device=sequences.device, dtype=sequences.dtype)
            result["beginnings"] = batch.beginnings
            first = 1 if self.instructed.is_encoder_decoder else 0  # a decoder may start with an end token
            result["ended"] = torch.isin(result["sequences"][:, :, first:], ends).any(-1)  # [B, n]
        if scored:
            generated, logprobs = token_logprobs(output)
            after_end = _after_end(generated, self._end_ids(options))
            if bool((logprobs.isnan() & ~after_end).any()):
                raise ValueError(
                    f"{self.model.name_or_path} computes logits that are not finite (NaN or infinite): its weights "
                    "are damaged, or its training diverged. Pass an earlier checkpoint, or download it again."
                )
            logprobs = logprobs.masked_fill(after_end, torch.nan)
            result["token_logprobs"] = logprobs.view(len(prompts), -1, logprobs.shape[-1])  # [B, n, T]
        return result

    def _encode_prompts(self, prompts: list[str]) -> dict[str, torch.Tensor]:
        if not any(prompts):
            return {}
        if self._is_native:
            return dict(self.processor(text=prompts, return_tensors="pt"))
        rows = [self.tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise ValueError(
                f"The prompts of a batch have {lengths} tokens; {type(self.model).__name__} requires equal lengths. "
                "Pass batch_size=1."
            )
        start, _ = special_ids(self.model, self.tokenizer)
        if start is None:
            raise ValueError(f"{type(self.model).__name__} has no begin token, so it takes no prompt.")
        # BLIP's `generate` replaces the first token and drops the last.
        last = [start] if is_blip(self.model) else []
        name = "decoder_input_ids" if self.model.config.is_encoder_decoder else "input_ids"
        return {name: torch.tensor([[start, *row, *last] for row in rows])}

    def _end_ids(self, options: dict[str, Any]) -> list[int]:
        """Return the end token ids of this call."""
        part = self.model if self.instructed is None else self.instructed.generating_part(self.model)
        config = options.get("generation_config") or part.generation_config
        ends = options.get("eos_token_id", config.eos_token_id)
        if is_blip(self.model):  # fixed in BLIP's `generate`
            _, ends = special_ids(self.model, self.tokenizer)
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: Any,
        return_scores: bool = False,
        return_token_scores: bool = False,
        return_ended: bool = False,
    ) -> list[dict[str, Any]]:
        """Decode the sequences `[1, n, L]` of one image to n records."""
        sequences = model_outputs["sequences"][0]
        if self.instructed is not None:
            beginnings = model_outputs["beginnings"]  # a batch of transformers' pipeline is taken apart to one text
            beginning = beginnings if isinstance(beginnings, str) else beginnings[0]
            texts = [self.instructed.decode(row, beginning) for row in sequences]
        elif self._is_native:
            texts = self.processor.post_process_image_text_to_text(sequences)
        else:
            texts = [self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in sequences]
        records: list[dict[str, Any]] = [{"generated_text": text} for text in texts]
        if return_ended and "ended" in model_outputs:
            for record, ended in zip(records, model_outputs["ended"][0].tolist(), strict=True):
                record["ended"] = ended
        if "token_logprobs" not in model_outputs:
            return records
        for record, row, logprobs in zip(records, sequences, model_outputs["token_logprobs"][0], strict=True):
            ids = row[-len(logprobs) :][~logprobs.isnan()]
            scores = logprobs[~logprobs.isnan()]
            if return_scores:
                record["score"] = scores.sum().item()
            if return_token_scores:
                record["tokens"] = [self.tokenizer.decode([token]) for token in ids.tolist()]
                record["token_scores"] = scores.tolist()
        return records

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save model, processor and pipeline; `pipeline(model=directory, trust_remote_code=True)` loads them.

        Args:
            save_directory: directory, created if it is missing.
            **kwargs: options of `save_pretrained` of the model.
        """
        self.model.save_pretrained(save_directory, **kwargs)
        for part in [self.processor] if self.processor is not None else [self.tokenizer, self.image_processor]:
            part.save_pretrained(save_directory)
        bundle_pipeline(save_directory)


class Wrapped:
    """Wrapper of a value that the collation of transformers then passes through unchanged."""

    def __init__(self, value: Any) -> None:
        self.value = value


def in_dtype(batch: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Convert the floating-point tensors of a batch to `dtype`; boxes stay in float32, see `RegionFeatures`."""
    return {
        name: values.to(dtype) if values.is_floating_point() and name != "region_boxes" else values
        for name, values in batch.items()
    }


def is_native_processor(processor: Any) -> bool:
    """Return True if a processor is one of this library, which encodes regions, prompts and captions."""
    return hasattr(processor, "encode_prompts") and hasattr(processor, "encode_captions")


def is_blip(model: Any) -> bool:
    """Return True if a model is transformers' BLIP, whose `generate` has its own rules for special tokens."""
    return bool(model.config.model_type == "blip")


def has_own_code(model: Any) -> bool:
    """Return True if a model's code comes from its checkpoint."""
    return type(model).__module__.startswith("transformers_modules.")


def special_ids(model: Any, tokenizer: Any) -> tuple[int | None, int | None]:
    """Return the special token ids with which a captioner of transformers begins and ends captions.

    Args:
        model: a captioner of transformers.
        tokenizer: its tokenizer, read where the generation configuration names no token.

    Returns:
        Begin id and end id, each None if neither the model nor the tokenizer names one.
    """
    config, defaults = model.config, model.generation_config
    if is_blip(model):  # fixed in its own `generate`
        return config.text_config.bos_token_id, config.text_config.sep_token_id
    end = defaults.eos_token_id
    end = end[0] if isinstance(end, list) else end
    begins = (defaults.decoder_start_token_id, defaults.bos_token_id, tokenizer.bos_token_id, tokenizer.cls_token_id)
    ends = (end, tokenizer.eos_token_id, tokenizer.sep_token_id)
    return (
        next((token for token in begins if token is not None), None),
        next((token for token in ends if token is not None), None),
    )


def batch_seed(seed: int, inputs: Mapping[str, torch.Tensor]) -> int:
    """Return a seed derived from `seed` and a batch's inputs, independent of other batches and of their order."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=7)
    for name, values in sorted(inputs.items()):
        digest.update(f"{name} {tuple(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little")


@contextmanager
def seeded(seed: int | None, inputs: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Context with a batch's own random numbers; torch's state is restored afterwards.

    Args:
        seed: see `batch_seed`; None: the random numbers are those of torch.
        inputs: of the batch.
    """
    if seed is None:
        yield
        return
    devices = {values.device for values in inputs.values() if values.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        torch.manual_seed(batch_seed(seed, inputs))
        yield


def token_logprobs(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of every generated token.

    Args:
        output: result of `generate(..., return_dict_in_generate=True)` with N sequences, of a captioner of this
            library or with `output_logits=True`.

    Returns:
        Generated tokens `[N, T]` and their log-probabilities `[N, T]` under the unprocessed logits. Values after the
        end token of a sequence are undefined.
    """
    logprobs = getattr(output, "model_logprobs", None)
    if logprobs is not None:
        return output.sequences[:, output.sequences.shape[1] - logprobs.shape[1] :], logprobs
    parents = getattr(output, "beam_indices", None)
    steps = len(output.logits) if parents is None else parents.shape[1]
    generated = output.sequences[:, output.sequences.shape[1] - steps :]
    columns = []
    for step in range(steps):
        logits = output.logits[step] if parents is None else output.logits[step][parents[:, step].clamp(min=0)]
        columns.append(logits.float().log_softmax(-1).gather(-1, generated[:, step, None]))
    return generated, torch.cat(columns, dim=-1)


def _after_end(generated: torch.Tensor, end_ids: list[int]) -> torch.Tensor:
    """Return a mask `[N, T]`, True after the first end token of each row."""
    is_end = torch.isin(generated, torch.tensor(end_ids, device=generated.device, dtype=generated.dtype)).long()
    return is_end.cumsum(dim=-1) - is_end > 0


def fetch(source: Any, timeout: float | None = None, max_bytes: float | None = None) -> Any:
    """Download an image if it is an `http(s)` URL, see `download_image`; return anything else unchanged."""
    if not (isinstance(source, str) and source.startswith(("http://", "https://"))):
        return source
    return download_image(source, timeout, max_bytes)


def upright_rgb(source: Any) -> Any:
    """Read an image as upright RGB for the processors of transformers, see `read_image`.

    Arrays with channels and tensors are returned unchanged.

    Raises:
        FileNotFoundError: no file has this path.
        ValueError: the image cannot be read.
    """
    if isinstance(source, torch.Tensor) or (isinstance(source, np.ndarray) and source.ndim != 2):
        return source
    return read_image(source)


def _column_of_images(rows: Any) -> Iterator[Any]:
    """Iterate over the images of a `datasets.Dataset`: column `image`, or `images` for several views."""
    names = ["image"] if rows.column_names is None else [n for n in ("image", "images") if n in rows.column_names]
    if not names:
        raise ValueError(
            f"The data set has the columns {list(rows.column_names)}; expected 'image'. For a different column pass "
            "transformers.pipelines.pt_utils.KeyDataset(rows, name)."
        )
    return (row[names[0]] for row in rows)


def register_pipeline() -> None:
    """Register `pipeline("image-captioning", ...)` with transformers; a second call changes nothing."""
    registered = PIPELINE_REGISTRY.supported_tasks.get(TASK)
    if registered is None or registered["impl"] is not ImageCaptioningPipeline:
        PIPELINE_REGISTRY.register_pipeline(
            TASK, pipeline_class=ImageCaptioningPipeline, pt_model=AutoModelForImageTextToText, type="multimodal"
        )


def bundle_pipeline(directory: str | os.PathLike[str]) -> None:
    """Add this pipeline's code, and its entry in config.json, to a saved checkpoint.

    Args:
        directory: directory with config.json.
    """
    source, folder = Path(__file__), Path(directory)
    for file in (source, Path(inspect.getfile(read_image))):
        if file.resolve() != (folder / file.name).resolve():
            code = LIBRARY_IMPORT.sub("from .", file.read_text(encoding="utf-8"))
            (folder / file.name).write_text(code, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    reference = f"{source.stem}.{ImageCaptioningPipeline.__name__}"
    config["custom_pipelines"] = {
        TASK_IN_CHECKPOINT: {"impl": reference, "pt": [AutoModelForImageTextToText.__name__], "type": "multimodal"}
    }
    # This file stands alone, so it does not use `hf_captioners.output_files`; no other process uses this name.
    partial = folder / f".config.json-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        partial.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(partial, folder / "config.json")
    finally:
        partial.unlink(missing_ok=True)
