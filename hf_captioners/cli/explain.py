"""`hf-captioners explain`: draw the attention for each word of a caption over the image."""

import argparse
from pathlib import Path

from .names import check_model_arguments, check_path

NAME = "explain"
HELP = "draw the attention for each word of a caption"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of image, model and output."""
    parser.add_argument("image", help="path of an image")
    parser.add_argument(
        "--model",
        help="captioner of this library: name or directory; default: the one that an installed package offers",
    )
    parser.add_argument(
        "--output",
        help="image to write; default: NAME.attention.png in the current folder; relations between "
        "regions are drawn in NAME.graph.png, weights of attributes in NAME.attributes.png",
    )
    parser.add_argument("--num_beams", "--num-beams", type=int, help="default: generation configuration of the model")
    parser.add_argument("--caption", help="caption to explain; default: the model generates it")
    parser.add_argument(
        "--attributes", nargs="+", metavar="WORD", help="attributes of the image; default: those that are detected"
    )
    parser.add_argument("--locations", action="store_true", help="hard attention: show the most probable location")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--trust_remote_code",
        "--trust-remote-code",
        action="store_true",
        help="run code from the repository of the model",
    )


def run(args: argparse.Namespace) -> int:
    """Write the drawings and print the caption."""
    check_path("image", args.image)
    check_model_arguments(args)

    from hf_captioners.explain.attributes import draw_attributes
    from hf_captioners.explain.drawing import draw_attention
    from hf_captioners.explain.explanation import explain_caption, load_explainable
    from hf_captioners.explain.graph import draw_graph
    from hf_captioners.output_files import atomic_file, require_writable_folder

    source = Path(args.image)
    output = Path(args.output or f"{source.stem}.attention.png")
    stem = output.name.removesuffix(output.suffix).removesuffix(".attention")
    graph_output, attributes_output = (output.with_name(f"{stem}.{kind}.png") for kind in ("graph", "attributes"))
    for path in (output, graph_output, attributes_output):
        if path.exists() and not args.overwrite:
            raise FileExistsError(f"{path} exists. Pass --overwrite to replace it, or a different --output.")
    image_format = drawing_format(output)
    require_writable_folder(output.parent)
    model, processor = load_explainable(args.model, args.locations, args.trust_remote_code)
    explanation = explain_caption(model, processor, source, args.caption, args.num_beams, args.attributes)
    drawings = {}
    if explanation.maps.shape[1]:
        drawings[output] = (draw_attention(explanation), image_format)
    if explanation.graph is not None:
        drawings[graph_output] = (draw_graph(explanation), "PNG")
    if explanation.attributes is not None:
        drawings[attributes_output] = (draw_attributes(explanation), "PNG")
    print(explanation.caption)
    for path, (drawing, kind) in drawings.items():
        with atomic_file(path, "wb") as file:
            drawing.save(file, format=kind)
        print(f"Wrote {path}.")
    return 0


def drawing_format(output: Path) -> str:
    """Return the format of an image file by its suffix.

    Raises:
        ValueError: the suffix is unknown.
    """
    from PIL import Image

    formats = Image.registered_extensions()
    if output.suffix.lower() not in formats:
        raise ValueError(f"`--output` is {output}, expected the name of an image file, for example .png or .jpg.")
    return formats[output.suffix.lower()]
