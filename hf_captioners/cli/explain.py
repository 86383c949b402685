"""`hf-captioners explain`: where a captioner looked for each word, drawn over the image."""

import argparse
from pathlib import Path
from typing import Any

NAME = "explain"
HELP = "draw where a captioner looked for each word"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Image, model and output."""
    parser.add_argument("image", help="path of an image")
    parser.add_argument("--model", required=True, help="captioner of this library: name or directory")
    parser.add_argument("--output", help="image to write; default: NAME.attention.png in this folder")
    parser.add_argument("--num_beams", "--num-beams", type=int, help="default: the model's own setting")
    parser.add_argument("--caption", help="explain these words instead of the captioner's own")
    parser.add_argument("--locations", action="store_true", help="hard attention: show the one most probable place")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--trust_remote_code", "--trust-remote-code", action="store_true", help="run code that the model brings along"
    )


def run(args: argparse.Namespace) -> int:
    """Caption the image, write the drawing, print the caption."""
    from hf_captioners.output_files import require_writable_folder

    source = Path(args.image)
    if not source.is_file():
        raise FileNotFoundError(f"There is no image {source}.")
    output = Path(args.output or f"{source.stem}.attention.png")
    if output.exists() and not args.overwrite:
        raise FileExistsError(f"{output} exists. Pass --overwrite to replace it, or another --output.")
    require_writable_folder(output.parent)
    model, processor = load(args)
    caption = explain(model, processor, source, output, args.caption, args.num_beams)
    print(caption)
    print(f"Wrote {output}.")
    return 0


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """The captioner, able to show its attention, and its processor.

    Raises:
        ValueError: it is no captioner of this library, or places were asked of soft attention.
    """
    from hf_captioners.loading import load_captioner

    options = {"attn_implementation": "eager", "trust_remote_code": args.trust_remote_code}
    model, processor = load_captioner(args.model, **options)
    if not hasattr(model, "attention_maps"):
        raise ValueError(f"{args.model} is a {type(model).__name__}, which shows no attention over regions.")
    if args.locations and getattr(model.config, "attention_type", None) != "hard":
        raise ValueError("`--locations` needs a model of hard attention; leave it out.")
    if args.locations:
        model.config.location_decoding = "argmax"
    return model, processor


def explain(model: Any, processor: Any, source: Path, output: Path, caption: str | None, num_beams: int | None) -> str:
    """Write the drawing of one image.

    Args:
        caption: the words to explain; None: the model's own. num_beams: None: the model's own setting.

    Returns:
        The caption.
    """
    import torch

    from hf_captioners.explain.drawing import draw_attention, heat_of_words, shown_image

    inputs = processor(images=str(source), return_tensors="pt")
    if caption is None:
        options = {} if num_beams is None else {"num_beams": num_beams}
        sequence = model.generate(**inputs, **options)[:1]
    else:
        labels = processor(text_target=caption, return_tensors="pt")["labels"]
        begin = model.prepare_decoder_input_ids_from_labels(labels)
        sequence = torch.cat((begin, labels[:, -1:]), dim=1)
    maps = model.attention_maps(sequence, **inputs)[0]  # [T, R]
    with torch.no_grad():
        boxes = model.get_region_features(**inputs).region_boxes[0]
    words, heat = heat_of_words(processor, sequence[0].tolist(), maps, boxes, inputs["pixel_values"].shape[-2:])
    draw_attention(shown_image(inputs["pixel_values"][0], processor.image_processor), words, heat).save(output)
    return " ".join(words)
