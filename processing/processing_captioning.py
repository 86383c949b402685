"""Processors of captioners: images, regions and texts to model inputs, and generated tokens to captions."""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.utils import logging

logger = logging.get_logger(__name__)

IGNORED_LABEL = -100
FINAL_PUNCTUATION = r"[\s.,;:!?。，、；：！？．،؛؟۔।॥]+$"
"""Blanks and punctuation at the end of a caption, in the forms of Chinese, Japanese, Arabic and Hindi too."""
# Layouts of inputs that have one entry per image; `CaptioningConfig.encoder_inputs` describes them.
IMAGE_LAYOUTS = ("ids", "vector", "region", "relation")
# Arrays of an image's regions, by the keys of their entry.
REGION_KEYS = ("features", "boxes", "views")
# Options of texts for one call, as in the processors of transformers.
TEXT_OPTIONS = ("padding", "truncation", "max_length", "return_tensors")
CHOICES: dict[str, tuple[Any, ...]] = {
    "padding": (True, False, "longest", "max_length", "do_not_pad"),
    "truncation": (None, True, False, "longest_first", "only_first", "do_not_truncate"),
}
# How far a box may lie outside of the image before it is an error; smaller excess is rounding and is clamped.
BOX_TOLERANCE = 0.01


class CaptioningProcessor(ProcessorMixin):
    """Processor of a captioner: image processor and tokenizer in one object.

    ```python
    processor(images="photo.jpg", return_tensors="pt")                       # to caption
    processor(images="photo.jpg", text="a photo of", return_tensors="pt")    # to continue a prompt
    processor(images=images, text_target=captions, return_tensors="pt")    # to train
    processor(regions=[features_1, features_2], return_tensors="pt")         # regions instead of images
    processor(images=[[frontal, lateral], [frontal]], return_tensors="pt")   # several views of one object
    ```

    Args:
        image_processor: prepares images, for instance `CaptioningImageProcessor`.
        tokenizer: has a begin, an end and a padding token; it is called without adding special tokens.
        chat_template: a Jinja template, as in every processor.
        lowercase: convert captions and prompts to lower case. Default True: metrics compare captions in lower case,
            and a smaller vocabulary needs fewer captions. Set False for names or acronyms.
        drop_final_punctuation: remove full stops and other punctuation at the end of a caption. Default True.
        drop_punctuation: remove punctuation between spaces from a caption (`a dog , running` becomes `a dog running`),
            as the tokenizers of the caption metrics do. Default False.
        merge_repeated_words: when decoding, merge equal adjacent words (`a a dog` becomes `a dog`).
            Default False; the evaluation of several published captioners does it.
        declared_inputs: inputs per image that the captioner reads besides images and regions, name to layout; see
            `CaptioningConfig.encoder_inputs`. `for_config` fills it in.
        requires_region_boxes: refuse regions without boxes, unless relations between them are given. `for_config`
            fills it in.

    Raises:
        ValueError: the tokenizer lacks one of the three tokens.

    Examples:
        >>> import PIL.Image
        >>> from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
        >>> from hf_captioners.processing.processing_captioning import CaptioningProcessor
        >>> from hf_captioners.processing.word_tokenizer import build_word_tokenizer
        >>> tokenizer = build_word_tokenizer(["A dog runs.", "A cat sits."], at_least=1)
        >>> processor = CaptioningProcessor(CaptioningImageProcessor(size={"height": 32, "width": 32}), tokenizer)
        >>> batch = processor(images=PIL.Image.new("RGB", (80, 60)), text_target="A dog sits.", return_tensors="pt")
        >>> batch["pixel_values"].shape, batch["labels"].shape
        (torch.Size([1, 3, 32, 32]), torch.Size([1, 4]))
        >>> processor.decode(batch["labels"][0])
        'a dog sits'
    """

    # Called with the directory of every saved processor, see `CaptioningPreTrainedModel.checkpoint_completions`.
    checkpoint_completions: ClassVar[list[Callable[[Any], None]]] = []
    # Names under which words may be given for a declared input of the layout `"ids"`: name -> declared input.
    word_columns: ClassVar[Mapping[str, str]] = {}
    # Defaults of the options of texts, below those of the tokenizer.
    text_kwargs: ClassVar[Mapping[str, Any]] = {"padding": True}

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        chat_template: str | None = None,
        lowercase: bool = True,
        drop_final_punctuation: bool = True,
        drop_punctuation: bool = False,
        merge_repeated_words: bool = False,
        declared_inputs: Mapping[str, str] | None = None,
        requires_region_boxes: bool = False,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        for name in ("bos_token", "eos_token", "pad_token"):
            if getattr(tokenizer, f"{name}_id") is None:
                raise ValueError(
                    f"The tokenizer has no `{name}`; a captioner needs a begin, an end and a padding token. Add it: "
                    f"tokenizer.add_special_tokens({{'{name}': '<|{name.removesuffix('_token')}|>'}}), and resize the "
                    "model's embeddings to len(tokenizer)."
                )
        self.lowercase = lowercase
        self.drop_final_punctuation = drop_final_punctuation
        self.drop_punctuation = drop_punctuation
        self.merge_repeated_words = merge_repeated_words
        self.declared_inputs = dict(declared_inputs or {})
        self.requires_region_boxes = requires_region_boxes

    @classmethod
    def for_config(cls, config: Any, image_processor: Any, tokenizer: Any, **settings: Any) -> Any:
        """Build a processor for the inputs that a captioner's configuration declares.

        Args:
            config: configuration of the captioner.
            image_processor, tokenizer: parts of the processor.
            **settings: further arguments of the processor.
        """
        inputs = {**config.vision_inputs, **config.encoder_inputs}
        declared = {name: layout for name, layout in inputs.items() if layout in IMAGE_LAYOUTS}
        boxes = config.needs_region_boxes is not None
        return cls(image_processor, tokenizer, declared_inputs=declared, requires_region_boxes=boxes, **settings)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save as in transformers, with the code that the Auto classes need where this package is not installed."""
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        for complete in self.checkpoint_completions:
            complete(save_directory)
        return saved

    @property
    def input_columns(self) -> dict[str, str]:
        """Columns of a data set that are model inputs, with their layouts; columns of words become ids."""
        words = {name: "words" for name, target in self.word_columns.items() if target in self.declared_inputs}
        return {**self.declared_inputs, **words}

    def pad_columns(self, columns: Mapping[str, Sequence[Any]], images: int) -> dict[str, np.ndarray]:
        """Pad input columns of B images to batches, see `pad_inputs`; words become ids of the vocabulary.

        Args:
            columns: name of `input_columns` -> one entry per image.
            images: B.

        Raises:
            ValueError: words and ids of one input are given, or see `pad_inputs`.
        """
        inputs = dict(columns)
        for name, target in self.word_columns.items():
            if name not in inputs:
                continue
            if target in inputs:
                raise ValueError(f"Both `{name}` and `{target}` were given; pass one of them.")
            inputs[target] = self.ids_of_words(name, inputs.pop(name))
        for name, target in self.word_columns.items():
            if any(isinstance(entry, str) for row in inputs.get(target, ()) if np.ndim(row) for entry in row):
                raise ValueError(f"`{target}` holds words, expected ids of words. Pass words as `{name}`.")
        return pad_inputs(inputs, self.declared_inputs, images)

    def ids_of_words(self, name: str, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return the ids of each image's words; unknown words are dropped, with a warning.

        Raises:
            ValueError: an entry is no list of words.
        """
        for index, words in enumerate(rows):
            if isinstance(words, str) or not all(isinstance(word, str) for word in (words or ())):
                raise ValueError(
                    f"`{name}` of image {index} is {words!r:.80}, expected a list of words such as ['dog', 'grass']."
                )
        special, ids_by_word = {*self.tokenizer.all_special_ids}, {}
        for word in {word for words in rows for word in words or ()}:
            tokens = self.tokenizer(word, add_special_tokens=False)["input_ids"]
            if len(tokens) == 1 and tokens[0] not in special:
                ids_by_word[word] = tokens[0]
        dropped = [word for words in rows for word in words or () if word not in ids_by_word]
        if dropped:
            total = sum(len(words or ()) for words in rows)
            logger.warning(
                f"{len(dropped)} of {total} words of `{name}` are not in the vocabulary and are left out: "
                f"{', '.join(sorted(set(dropped))[:5])}."
            )
        return [[ids_by_word[word] for word in words or () if word in ids_by_word] for words in rows]

    @property
    def model_input_names(self) -> list[str]:
        """Names of the model inputs that `__call__` may return."""
        regions = ["region_features", "region_boxes", "region_mask", "region_views", *self.declared_inputs]
        regions += [f"{n.removesuffix('_ids')}_mask" for n, layout in self.declared_inputs.items() if layout == "ids"]
        padding = ["pixel_mask"] if getattr(self.image_processor, "do_pad", None) else []
        names = ["pixel_values", *padding, "view_mask", *regions]
        return [*names, "decoder_input_ids", "decoder_attention_mask", "labels"]

    def __call__(
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        regions: Any = None,
        text_target: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """Convert a batch of B images (or of their regions), prompts and captions to model inputs.

        Args:
            images: images, in any form that the image processor accepts. In a list that contains lists, every entry is
                a study: its views, from which the captioner computes one set of regions.
            text: prompts to continue: one for all images, or one per image. `""` is an empty prompt.
            regions: one entry per image, see `batch_regions`; replaces `images`.
            text_target: captions to learn: one per image, or the same number for each, with the captions of an image
                adjacent.
            **kwargs: declared inputs, one entry per image (`attribute_ids=[[3, 7], [5]]`); settings of the image
                processor for this call; and the options below. Settings and options may also be given as
                `images_kwargs={...}`, `text_kwargs={...}` and `common_kwargs={"return_tensors": ...}`, as in every
                processor of transformers. Options that the tokenizer was built with are its defaults.
            return_tensors (`str`, *optional*): `"pt"` or `"np"`; None returns lists.
            max_length (`int`, *optional*): longest prompt or caption in tokens, with its begin or end token.
            truncation (`bool`, *optional*): truncate rows to `max_length` tokens; they keep their begin or end token.
                Default: where `max_length` is given. True without it: to the tokenizer's `model_max_length`.
            padding (`bool` or `str`, *optional*): True (default) or `"longest"` pads rows to the longest;
                `"max_length"` to `max_length`; False not at all, which returns lists of different lengths.

        Returns:
            From `images`: `pixel_values` `[B, C, H, W]`; if a study has several views, `[B, V, C, H, W]`, padded with
            zeros, and `view_mask` `[B, V]` bool, True at real views; if the image processor pads images, `pixel_mask`
            `[B, H, W]` or `[B, V, H, W]`, 1 at their pixels. From `regions`: `region_features`, `region_mask`
            and perhaps `region_boxes` and `region_views`. From `text`: `decoder_input_ids` `[B, T]`, begin token and
            prompt without end token, and, if prompts differ in length, padding on the left with
            `decoder_attention_mask` `[B, T]`. From `text_target`: `labels` `[B, T]`, caption and end token, padded
            with -100. Of declared inputs: see `pad_inputs`.

        Raises:
            ValueError: nothing was given, both images and regions were, or their number does not match the texts.
            TypeError: a keyword is neither a declared input nor an option nor a setting of the image processor.
        """
        declared = {name: kwargs.pop(name) for name in self.input_columns if name in kwargs}
        text_options, image_options = self.options_of_call(kwargs)
        longest = None if text_options["truncation"] in (False, "do_not_truncate") else text_options["max_length"]
        if images is not None and regions is not None:
            raise ValueError("Both `images` and `regions` were given; pass one of them.")
        if images is None and regions is None and text is None and text_target is None and not declared:
            raise ValueError("Nothing was given; expected `images`, `regions`, `text` or `text_target`.")
        data: dict[str, Any] = {}
        count = None
        if images is not None:
            data.update(self._encode_images(images, text_options["return_tensors"], image_options))
            count = len(data["pixel_values"])
        if regions is not None:
            entries, region_inputs = split_regions(regions, self.input_columns)
            has_boxes = [isinstance(entry, Mapping) and entry.get("boxes") is not None for entry in entries]
            if self.requires_region_boxes and not all(has_boxes):
                self._require_relations(region_inputs.keys() | declared.keys())
            data.update(batch_regions(entries))
            declared |= region_inputs
            count = len(data["region_features"])
        if declared:
            padded = self.pad_columns(declared, len(next(iter(declared.values()))) if count is None else count)
            convert = torch.from_numpy if text_options["return_tensors"] == "pt" else np.asarray
            data.update({name: convert(values) for name, values in padded.items()})
        if text is not None:
            data.update(self.encode_prompts(_one_each(text, count), longest))
        if text_target is not None:
            data["labels"] = self.encode_captions(_some_each(text_target, count), longest)
        self._apply_padding(data, text_options)
        return BatchFeature(data, tensor_type=text_options["return_tensors"])

    def options_of_call(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the keyword arguments of `__call__` into text options and image processor settings.

        Raises:
            TypeError: a name is not known.
            ValueError: an option is given twice.
        """
        settings, texts = set(self.image_processor.valid_kwargs.__annotations__), {*TEXT_OPTIONS}
        groups = {"text_kwargs": texts, "images_kwargs": settings, "common_kwargs": {"return_tensors"}}
        unknown = kwargs.keys() - groups.keys() - texts - settings
        unknown |= {name for form, names in groups.items() for name in {*kwargs.get(form, ())} - names}
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no arguments {sorted(unknown)}; expected images, text, regions, "
                f"text_target, {', '.join((*TEXT_OPTIONS, *self.input_columns, *groups))}, or a setting of the "
                f"image processor: {sorted(settings)}."
            )
        defaults = {name: value for name, value in self.tokenizer.init_kwargs.items() if name in TEXT_OPTIONS}
        merged = self._merge_kwargs(self.valid_processor_kwargs, tokenizer_init_kwargs=defaults, **kwargs)
        tensors = merged["images_kwargs"].pop("return_tensors", None)
        of_texts = {**dict.fromkeys(TEXT_OPTIONS), "return_tensors": tensors, **merged["text_kwargs"]}
        for name, choices in CHOICES.items():
            if of_texts[name] not in choices:
                raise ValueError(f"{name}={of_texts[name]!r} is not supported, expected one of {choices}.")
        truncates = of_texts["truncation"] not in (None, False, "do_not_truncate")
        if of_texts["max_length"] is None and (truncates or of_texts["padding"] == "max_length"):
            of_texts["max_length"] = self.tokenizer.model_max_length
            if of_texts["max_length"] > 10**9:  # so transformers says that there is none
                raise ValueError("These options need `max_length`: the tokenizer has no `model_max_length`.")
        return of_texts, merged["images_kwargs"]

    def _apply_padding(self, data: dict[str, Any], options: Mapping[str, Any]) -> None:
        """Pad texts to `max_length` or undo their padding, by the option `padding`."""
        fill = {"decoder_input_ids": self.tokenizer.pad_token_id, "decoder_attention_mask": 0, "labels": IGNORED_LABEL}
        if options["padding"] == "max_length":
            if "decoder_input_ids" in data:
                data.setdefault("decoder_attention_mask", np.ones_like(data["decoder_input_ids"]))
            for name in fill.keys() & data.keys():
                missing = max(0, options["max_length"] - data[name].shape[1])
                sides = (0, missing) if name == "labels" else (missing, 0)
                data[name] = np.pad(data[name], ((0, 0), sides), constant_values=fill[name])
        elif options["padding"] in (False, "do_not_pad"):
            real = {"labels": data["labels"] != IGNORED_LABEL} if "labels" in data else {}
            if "decoder_attention_mask" in data:  # there is one if any row is padded
                real["decoder_input_ids"] = data.pop("decoder_attention_mask") == 1
            for name in (name for name, mask in real.items() if not mask.all()):
                data[name] = [row[mask] for row, mask in zip(data[name], real[name], strict=True)]

    def _require_relations(self, given: Collection[str]) -> None:
        """Raise a `ValueError` for missing boxes, unless relations between regions are among the inputs."""
        relations = [name for name, layout in self.declared_inputs.items() if layout == "relation"]
        if not any(name in given for name in relations):
            instead = "".join(f", or '{name.removeprefix('region_')}' instead of boxes" for name in relations)
            raise ValueError(
                f"This captioner needs boxes: pass `regions` as {{'features': ..., 'boxes': ...}}{instead}."
            )

    def _encode_images(self, images: Any, return_tensors: str | None, options: dict[str, Any]) -> dict[str, Any]:
        """Return `pixel_values` of images; for studies of several views with their `view_mask`."""
        if isinstance(images, Sequence) and not isinstance(images, (str, bytes)):
            images = list(images)  # a column of a data set is not a list
        studies = studies_of(images)
        if studies is not None:
            images = list(itertools.chain.from_iterable(studies))
        if studies is None or len(images) == len(studies):
            prepared = self.image_processor(images, return_tensors=return_tensors, **options)
            return {name: prepared[name] for name in ("pixel_values", "pixel_mask") if name in prepared}
        prepared = self.image_processor(images, return_tensors="pt", **options)  # [all views, C, H, W]
        counts = torch.tensor([len(views) for views in studies])
        view_mask = torch.arange(int(counts.max())) < counts[:, None]
        data = {"view_mask": view_mask}
        for name in ("pixel_values", "pixel_mask"):
            if name in prepared:
                rows = prepared[name]
                data[name] = rows.new_zeros(*view_mask.shape, *rows.shape[1:])
                data[name][view_mask.to(rows.device)] = rows
        return data if return_tensors == "pt" else {name: values.cpu().numpy() for name, values in data.items()}

    def encode_prompts(self, prompts: Sequence[str], max_length: int | None = None) -> dict[str, np.ndarray]:
        """Encode prompts, which captions will continue, padded on the left.

        Args:
            prompts: B texts; `""` becomes the begin token alone.
            max_length: longest row, begin token included; longer prompts are truncated.

        Returns:
            `decoder_input_ids` `[B, T]` int64 and, if any row is padded, `decoder_attention_mask` `[B, T]` int64.
        """
        rows = [[self.tokenizer.bos_token_id, *self._tokens_of(self.normalise_prompt(text))] for text in prompts]
        rows = [row[:max_length] for row in rows]
        width = max(len(row) for row in rows)
        ids = np.full((len(rows), width), self.tokenizer.pad_token_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, width - len(row) :], mask[index, width - len(row) :] = row, 1
        return {"decoder_input_ids": ids} if mask.all() else {"decoder_input_ids": ids, "decoder_attention_mask": mask}

    def encode_captions(self, captions: Sequence[str], max_length: int | None = None) -> np.ndarray:
        """Encode training captions to labels, which end with the end token.

        Args:
            captions: B texts.
            max_length: longest row, end token included; longer captions are truncated and keep the end token.

        Returns:
            Labels `[B, T]` int64: tokens and end token, padded with -100.
        """
        rows = [self._tokens_of(self.normalise_caption(text)) for text in captions]
        kept = None if max_length is None else max_length - 1
        rows = [[*row[:kept], self.tokenizer.eos_token_id] for row in rows]
        labels = np.full((len(rows), max(len(row) for row in rows)), IGNORED_LABEL, dtype=np.int64)
        for index, row in enumerate(rows):
            labels[index, : len(row)] = row
        return labels

    def tokens_of_captions(self, captions: Iterable[str]) -> set[int]:
        """Return the set of token ids that occur in captions, without begin and end tokens."""
        return {token for caption in captions for token in self._tokens_of(self.normalise_caption(caption))}

    def normalise_caption(self, caption: str) -> str:
        """Normalise whitespace, case and punctuation of a caption by this processor's settings."""
        text = self.normalise_prompt(caption)
        if self.drop_punctuation:
            text = " ".join(word for word in text.split() if word.strip(string.punctuation))
        return re.sub(FINAL_PUNCTUATION, "", text) if self.drop_final_punctuation else text

    def normalise_prompt(self, prompt: str) -> str:
        """Normalise whitespace and case of a prompt by this processor's settings."""
        prompt = unicodedata.normalize("NFC", prompt)  # an accented letter is one token however it was typed
        return " ".join((prompt.lower() if self.lowercase else prompt).split())

    def text_for_tokenizer(self, text: str) -> str:
        """Return a normalised text in the form that the tokenizer expects; an architecture may override it."""
        return text

    def _tokens_of(self, text: str) -> list[int]:
        return self.tokenizer(self.text_for_tokenizer(text), add_special_tokens=False)["input_ids"] if text else []

    def decode(self, token_ids: Any, skip_special_tokens: bool = True, **kwargs: Any) -> str | list[str]:
        """Decode generated tokens `[T]` to a caption, or `[B, T]` to B captions.

        A caption ends before the first end token. You can pass labels too.

        Args:
            token_ids: ids; leading padding, a begin token and ignored labels are skipped.
            skip_special_tokens: False decodes all tokens.
            **kwargs: options of the tokenizer's `decode`.
        """
        rows = token_ids.tolist() if isinstance(token_ids, (np.ndarray, np.integer, torch.Tensor)) else token_ids
        rows = [rows] if isinstance(rows, int) else list(rows)
        if rows and not isinstance(rows[0], (int, np.integer)):
            return self.batch_decode(rows, skip_special_tokens=skip_special_tokens, **kwargs)
        if not skip_special_tokens:
            return self.tokenizer.decode([token for token in rows if token >= 0], skip_special_tokens=False, **kwargs)
        return self.caption_of(self.after_begin(rows), **kwargs)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = True, **kwargs: Any) -> list[str]:
        """Decode B rows of generated tokens to B captions, see `decode`."""
        return [str(self.decode(row, skip_special_tokens=skip_special_tokens, **kwargs)) for row in sequences]

    def caption_of(self, tokens: Sequence[int], **kwargs: Any) -> str:
        """Decode the tokens after a begin token, up to the first end token."""
        eos = self.tokenizer.eos_token_id
        tokens = tokens[: tokens.index(eos)] if eos in tokens else tokens
        text = self.tokenizer.decode(tokens, skip_special_tokens=True, **kwargs).strip()
        return " ".join(without_repetitions(text.split())) if self.merge_repeated_words else text

    def after_begin(self, row: Sequence[int]) -> list[int]:
        """Remove padding, begin token and ignored labels at the start of a row of ids."""
        bos, eos, pad = (getattr(self.tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad"))
        row = [int(token) for token in row if token >= 0]
        start = next((index for index, token in enumerate(row) if token != pad), len(row))
        if start < len(row) and row[start] == bos:
            return row[start + 1 :]
        # Without a begin token, an apparent padding token may be the end token of an empty caption.
        return row if pad == eos != bos else row[start:]

    def post_process_image_text_to_text(
        self, generated_outputs: Any, skip_special_tokens: bool = True, **kwargs: Any
    ) -> list[str]:
        """Decode the token ids that `generate()` returns, `[B, T]` or `[T]`, to captions."""
        captions = self.decode(generated_outputs, skip_special_tokens=skip_special_tokens, **kwargs)
        return [captions] if isinstance(captions, str) else captions


def without_repetitions(words: Sequence[str]) -> list[str]:
    """Drop words that repeat the word before them: `a a dog` becomes `a dog`."""
    return [word for word, _ in itertools.groupby(words)]


def studies_of(images: Any) -> list[list[Any]] | None:
    """Return the views of each study if `images` has lists of several views, else None.

    Raises:
        ValueError: a study has no view.
    """
    if not isinstance(images, (list, tuple)) or not any(isinstance(entry, (list, tuple)) for entry in images):
        return None
    studies = [list(entry) if isinstance(entry, (list, tuple)) else [entry] for entry in images]
    if [] in studies:
        raise ValueError(f"Study {studies.index([])} of `images` has no view; each needs at least one image.")
    return studies


def _one_each(text: str | Sequence[str], images: int | None) -> list[str]:
    """Return one prompt per image; a single prompt is repeated."""
    if isinstance(text, str):
        return [text] * (images or 1)
    if images not in (None, len(text)):
        raise ValueError(f"{len(text)} prompts were given for {images} images; give one text, or one each.")
    return list(text)


def _some_each(captions: str | Sequence[str], images: int | None) -> list[str]:
    """Check that there is the same number of captions for each image; return them as a list."""
    captions = [captions] if isinstance(captions, str) else list(captions)
    if not captions or (images is not None and len(captions) % images):
        raise ValueError(
            f"{len(captions)} captions were given for {images} images; give the same number for each image."
        )
    return captions


def split_regions(regions: Any, declared: Mapping[str, str]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Split the entries of `regions` into region arrays and other declared inputs.

    Args:
        regions: see `batch_regions`. An entry may also have declared inputs, by their name or without `region_` before
            it: `{"features": ..., "boxes": ..., "relations": ...}` for `region_relations`.
        declared: name -> layout.

    Returns:
        The entries without them, and for each declared input one value per image.

    Raises:
        ValueError: some entries have an input that others lack.
    """
    entries, values_by_name = [], {name: [] for name in declared}  # type: ignore[var-annotated]
    for entry in _images_of(regions):
        if isinstance(entry, Mapping):
            entry = dict(entry)
            for name in declared:
                for key in (name, name.removeprefix("region_")):
                    if key in entry and key not in REGION_KEYS:
                        values_by_name[name].append(entry.pop(key))
        entries.append(entry)
    for name, values in values_by_name.items():
        if values and len(values) != len(entries):
            raise ValueError(
                f"`regions` has {name} for {len(values)} of {len(entries)} images; give it for all or none."
            )
    return entries, {name: values for name, values in values_by_name.items() if values}


def batch_regions(regions: Any) -> dict[str, np.ndarray]:
    """Pad the regions of several images to a batch.

    Args:
        regions: one entry per image: features `[R, D]`, or `{"features": [R, D], "boxes": [R, 4], "views": [R]}` with
            boxes as normalised corners x1, y1, x2, y2 in 0..1 and the number of the view that a region is in. An array
            `[B, R, D]` stands for B images, a single entry for one.

    Returns:
        `region_features` `[B, R, D]` float32, zero where padded; `region_mask` `[B, R]` bool, True at real regions;
        `region_boxes` `[B, R, 4]` float32 and `region_views` `[B, R]` int64 if they were given. R is the largest
        number of regions of an image.

    Raises:
        ValueError: features are not two-dimensional, empty, not finite, or of different sizes; boxes or views are
            missing for some images or do not match the features; boxes are not normalised corners.
    """
    entries = [_entry(entry, index) for index, entry in enumerate(_images_of(regions))]
    if not entries:
        raise ValueError("`regions` is empty; expected one entry per image.")
    sizes = sorted({entry["features"].shape[1] for entry in entries})
    if len(sizes) > 1:
        raise ValueError(
            f"`regions` mixes features of sizes {sizes}; expected one size. Extract all images with one model."
        )
    counts = [len(entry["features"]) for entry in entries]
    batch = {"region_mask": np.arange(max(counts)) < np.array(counts)[:, None]}
    for key in REGION_KEYS:
        has_key = [key in entry for entry in entries]
        if any(has_key) and not all(has_key):
            raise ValueError(
                f"`regions` has {key} for some images only; image {has_key.index(False)} has none. Give {key} for all "
                "images or for none."
            )
        if all(has_key):
            rows = [entry[key] for entry in entries]
            batch[f"region_{key}"] = pad(rows, (max(counts), *rows[0].shape[1:]))
    return batch


def _images_of(regions: Any) -> list[Any]:
    if isinstance(regions, Mapping):
        return [regions]
    if isinstance(regions, (np.ndarray, torch.Tensor)):
        return [regions] if regions.ndim == 2 else list(regions)
    return list(regions)


def _entry(entry: Any, index: int) -> dict[str, np.ndarray]:
    """Check the regions of one image; return its arrays by the keys of `REGION_KEYS`."""
    arrays = entry if isinstance(entry, Mapping) else {"features": entry}
    if "features" not in arrays or arrays.keys() - {*REGION_KEYS, "relations"}:  # relations may be left unread
        raise ValueError(
            f"`regions` of image {index} has the keys {sorted(arrays)}; expected 'features' and, if there are "
            "any, 'boxes' and 'views'."
        )
    features = _array(arrays["features"])
    if features.ndim != 2:
        raise ValueError(
            f"`regions` of image {index} has the shape {features.shape}; expected features [R, D]: R regions, "
            "D features per region."
        )
    if features.shape[0] == 0 or features.shape[1] == 0:
        raise ValueError(
            f"`regions` of image {index} has the shape {features.shape}: it has no features. Leave the "
            "image out, or give it one region that covers the whole image."
        )
    if not np.isfinite(features).all():
        bad = int(np.argmin(np.isfinite(features).all(axis=1)))
        raise ValueError(
            f"`regions` of image {index} has NaN or infinite features, first in region {bad}. Extract the image again."
        )
    checked = {"features": features}
    if arrays.get("boxes") is not None:
        checked["boxes"] = _checked_boxes(_array(arrays["boxes"]), len(features), index)
    if arrays.get("views") is not None:
        checked["views"] = np.asarray(arrays["views"], dtype=np.int64)
        if checked["views"].shape != (len(features),):
            raise ValueError(
                f"Views of image {index} have the shape {checked['views'].shape}; its {len(features)} regions need "
                f"({len(features)},): the number of the view that each region is in."
            )
    return checked


def _checked_boxes(boxes: np.ndarray, count: int, index: int) -> np.ndarray:
    if boxes.shape != (count, 4):
        raise ValueError(
            f"Boxes of image {index} have the shape {boxes.shape}; its {count} regions need ({count}, 4): x1, y1, "
            "x2, y2."
        )
    if not (np.isfinite(boxes).all() and boxes.min() >= -BOX_TOLERANCE and boxes.max() <= 1 + BOX_TOLERANCE):
        raise ValueError(
            f"Boxes of image {index} run from {boxes.min():g} to {boxes.max():g}; expected 0..1. Divide them by the "
            "image's size: boxes / [width, height, width, height]."
        )
    boxes = boxes.clip(0, 1)
    if (boxes[:, 2:] < boxes[:, :2]).any():
        bad = int(np.argmax((boxes[:, 2:] < boxes[:, :2]).any(axis=1)))
        raise ValueError(
            f"Box {bad} of image {index} is {boxes[bad].round(4).tolist()}; expected corners x1 <= x2, y1 <= y2. "
            "If it is x, y, width, height, add the first two to the last two."
        )
    return boxes


def _array(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().float().numpy()
    return np.asarray(values, dtype=np.float32)


def pad_inputs(inputs: Mapping[str, Sequence[Any]], declared: Mapping[str, str], images: int) -> dict[str, np.ndarray]:
    """Pad the declared inputs of B images to batches.

    Args:
        inputs: name -> one entry per image.
        declared: name -> layout.
        images: B.

    Returns:
        Of `"ids"` (lists of integers): NAME `[B, N]` int64, padded with 0, and its mask `[B, N]` bool, True at real
        ids (of `attribute_ids` it is `attribute_mask`); N is at least 1. Of `"vector"`: `[B, D]`. Of `"region"`:
        `[B, R, ...]`, and of `"relation"`: `[B, R, R]`, both padded with 0.

    Raises:
        TypeError: an input is not declared.
        ValueError: the number of entries is not B, or an entry has the wrong form.
    """
    batch: dict[str, np.ndarray] = {}
    for name, rows in inputs.items():
        if name not in declared:
            raise TypeError(f"`{name}` is not an input of this captioner; it reads {', '.join(declared) or 'none'}.")
        if len(rows) != images:
            raise ValueError(f"`{name}` has {len(rows)} entries for {images} images; give one per image.")
        layout = declared[name]
        arrays = [_input_of(name, layout, row, index) for index, row in enumerate(rows)]
        if layout == "ids":
            counts = np.array([len(row) for row in arrays])
            batch[f"{name.removesuffix('_ids')}_mask"] = np.arange(max(1, counts.max())) < counts[:, None]
            batch[name] = pad(arrays, (max(1, int(counts.max())),))
        elif layout == "vector":
            batch[name] = np.stack(arrays)
        else:
            regions = max(len(row) for row in arrays)
            square = layout == "relation"
            batch[name] = pad(arrays, (regions, regions) if square else (regions, *arrays[0].shape[1:]))
    return batch


def pad(rows: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Pad arrays with zeros to a common shape, and stack them."""
    padded = np.zeros((len(rows), *shape), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[tuple(slice(size) for size in row.shape)] = row
    return padded


def _input_of(name: str, layout: str, value: Any, index: int) -> np.ndarray:
    dimensions = {"ids": 1, "vector": 1, "relation": 2}.get(layout)
    try:
        array = np.asarray(value, dtype=np.int64 if layout == "ids" and not _has_fractions(value) else np.float32)
    except (TypeError, ValueError):
        raise ValueError(
            f"`{name}` of image {index} is {value!r:.80}, expected numbers. Convert words to ids first."
        ) from None
    if layout == "ids" and array.dtype != np.int64:
        raise ValueError(f"`{name}` of image {index} has fractions, expected integer ids.")
    if dimensions is not None and array.ndim != dimensions:
        raise ValueError(f"`{name}` of image {index} has the shape {array.shape}, expected {dimensions} dimension(s).")
    if layout == "relation" and array.shape[0] != array.shape[1]:
        raise ValueError(f"`{name}` of image {index} has the shape {array.shape}, expected [regions, regions].")
    return array


def _has_fractions(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind == "f" and bool((array % 1 != 0).any())
