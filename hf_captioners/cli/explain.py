"""`hf-captioners explain`: draw the attention for each word of a caption over the image."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_captioners.explain import METHODS

from .parsing import positive
from .paths import check_model_and_device, check_path

NAME = "explain"
HELP = "draw the attention for each word of a caption"
FORMATS = ("png", "svg", "pdf", "jpg", "jpeg", "webp", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of images, model and output."""
    parser.add_argument("images", nargs="+", metavar="image", help="paths of images")
    parser.add_argument(
        "--model",
        help="captioner of this library: name or directory; default: the one that an installed package offers",
    )
    parser.add_argument(
        "--output",
        help=f"file to write (.{', .'.join(FORMATS)}), or a folder; an .html file is one page of all images; default: "
        "NAME.attention.png, or NAME.relevance.png, in the current folder; relations between regions are drawn in "
        "NAME.graph.png, weights of attributes in NAME.attributes.png",
    )
    parser.add_argument("--num_beams", type=positive, help="default: generation configuration of the model")
    parser.add_argument("--caption", help="caption to explain, of one image; default: the model generates it")
    parser.add_argument(
        "--attributes", nargs="+", metavar="WORD", help="attributes of the image; default: those that are detected"
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        help="attention: weights of the last layer; relevance: attention times the gradient of the word; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--confidence",
        action="store_true",
        help="colour the words of a calibrated captioner by its confidence (hf-captioners calibrate)",
    )
    parser.add_argument("--locations", action="store_true", help="hard attention: show the most probable location")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run code from the repository of the model",
    )


def run(args: argparse.Namespace) -> int:
    """Write the attention figures and print the captions."""
    for image in args.images:
        check_path("image", image)
    check_model_and_device(args.model)
    if args.caption is not None and len(args.images) > 1:
        raise ValueError(f"`--caption` explains one image, but {len(args.images)} are given; leave out one of them.")
    if args.confidence and (args.caption is not None or args.attributes is not None):
        name = "attributes" if args.caption is None else "caption"
        raise ValueError(f"`--confidence` is about captions that the captioner generates alone: leave out `--{name}`.")
    output, kind = output_of(args.output, len(args.images))
    names = names_of(args.images, output, args.method)
    planned = [output] if kind == "html" else [path for name in names for path in name.values()]
    for path in planned:
        if path.exists() and not args.overwrite:
            raise FileExistsError(f"{path} exists. Pass --overwrite to replace it, or a different --output.")

    from hf_captioners.explain.explanation import explain_caption, load_explainable
    from hf_captioners.explain.page import render_page
    from hf_captioners.output_files import require_writable_folder, write_text

    require_writable_folder(planned[0].parent)
    model, processor = load_explainable(args.model, args.locations, args.trust_remote_code)
    assessed = None
    if args.confidence:
        from hf_captioners.explain.word_confidence import ExplainedConfidence, with_confidence

        assessed = ExplainedConfidence(model, processor, args.num_beams)
    explanations = {}
    for image, paths in zip(args.images, names, strict=True):
        record = None if assessed is None else assessed.caption(Path(image))
        caption = args.caption if record is None else record["generated_text"]
        explanation = explain_caption(
            model, processor, Path(image), caption, args.num_beams, args.attributes, args.method
        )
        if record is not None:
            explanation = with_confidence(explanation, record)
        print(explanation.caption)
        if kind == "html":
            explanations[image] = explanation
            continue
        for path, figure in figures(explanation, paths):
            save(figure, path)
            print(f"Wrote {path}.")
    if kind == "html":
        write_text(output, render_page(explanations, args.model or "The default captioner"))
        print(f"Wrote {output}.")
    return 0


def output_of(typed: str | None, images: int) -> tuple[Path, str]:
    """Return the output file or folder and the file format; `""` for a folder.

    Raises:
        ValueError: the ending is unknown, or one drawing is named for several images.
    """
    if typed is None:
        return Path("."), ""
    path = Path(typed)
    kind = path.suffix.lower().removeprefix(".")
    if path.is_dir() or not kind:
        return path, ""
    if kind not in FORMATS:
        raise ValueError(f"`--output` is {path}, expected a folder or a file that ends in .{', .'.join(FORMATS)}.")
    if images > 1 and kind != "html":
        raise ValueError(f"`--output` is {path} for {images} images; expected a folder, or an .html file.")
    return path, kind


def names_of(images: list[str], output: Path, method: str) -> list[dict[str, Path]]:
    """Return the output files of each image by kind of figure: `method`, `"graph"` and `"attributes"`.

    Raises:
        ValueError: two images have one name, so that their drawings would be one file.
    """
    names = []
    for image in map(Path, images):
        if output.suffix and not output.is_dir():
            stem, ending, folder = output.stem.removesuffix(f".{method}"), output.suffix, output.parent
        else:
            stem, ending, folder = image.stem, ".png", output
        names.append({kind: folder / f"{stem}.{kind}{ending}" for kind in (method, "graph", "attributes")})
    if output.suffix and not output.is_dir():
        names[0][method] = output
        return names
    stems = [Path(image).stem for image in images]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise ValueError(f"Several images are called {twice[0]}; write one page: --output explanations.html")
    return names


def figures(explanation: Any, paths: dict[str, Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the figures available in an explanation, with their output files."""
    from hf_captioners.explain.attributes import draw_attributes
    from hf_captioners.explain.drawing import draw_attention
    from hf_captioners.explain.graph import draw_graph

    if explanation.maps.shape[1]:
        yield paths[explanation.method], draw_attention(explanation)
    if explanation.graph is not None:
        yield paths["graph"], draw_graph(explanation)
    if explanation.attributes is not None:
        yield paths["attributes"], draw_attributes(explanation)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file's ending."""
    from hf_captioners.output_files import atomic_file

    with atomic_file(path, "wb") as file:
        figure.savefig(file, format=path.suffix.lower().removeprefix("."), dpi=120)
