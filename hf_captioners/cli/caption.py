"""`hf-captioners caption`: caption an image, a folder or a list of images."""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_captioners.names import read_named_values

from .interruption import note_at_interruption
from .memory import keep_freed_memory
from .parsing import positive
from .paths import check_model_and_device, check_path
from .sidecars import OF_SIDECARS, add_sidecar_arguments, confirmed_plan, is_resumed, left_out, mode_of, written

if TYPE_CHECKING:
    from hf_captioners.captioning.batches import UnreadableImage

NAME = "caption"
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
PACKED_WEIGHTS = ("float32", "float16", "bfloat16", "int8", "plain")
HELP = "caption an image, a folder or a list of images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of inputs, model, decoding and output."""
    parser.add_argument(
        "inputs",
        nargs="*",
        help="images, folders, .txt lists of paths, .tar shards, .parquet or .arrow files, data sets saved to "
        "disk or are on the Hub: hf://datasets/OWNER/NAME",
    )
    parser.add_argument(
        "--model",
        action="append",
        help="captioner: name or directory; default: the captioner that an installed package offers",
    )
    add_ensemble_argument(parser)
    add_weights_argument(parser)
    parser.add_argument(
        "--output",
        help="file to write: .jsonl, .csv, .txt, .json (COCO results), .parquet, or a folder for Parquet parts, one "
        "for each shard; default: standard output",
    )
    parser.add_argument(
        "--sidecar",
        nargs="?",
        const="txt",
        metavar="ENDING",
        help="write a text file beside each image, with this ending; default: txt",
    )
    add_text_arguments(parser)
    add_confidence_arguments(parser)
    parser.add_argument(
        "--min_confidence",
        type=float,
        metavar="P",
        help="with --confidence: leave out captions whose confidence (that all content words are right) is below P",
    )
    parser.add_argument("--shard", help="i/n: only part i of n of the images, for several machines")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that read the next images while the model works; default: all processors but one, at most 8",
    )
    add_engine_arguments(parser)
    add_sidecar_arguments(parser)
    add_image_arguments(parser)
    add_model_arguments(parser)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the engine (this process or Ray)."""
    parser.add_argument("--engine", choices=("ray",), help="compute on Ray; default: this process")
    parser.add_argument("--actors", type=int, metavar="N", help="captioners of the engine at a time; default: 1")
    parser.add_argument(
        "--ray_address",
        metavar="ADDRESS",
        help="of a Ray cluster, for example auto; default: RAY_ADDRESS, or Ray on this machine",
    )


def engine_of(args: argparse.Namespace) -> Any:
    """Return the engine chosen by the arguments; None for this process.

    Raises:
        ValueError: an argument of an engine was typed without one, or is out of range.
        ImportError: the engine is not installed.
    """
    if args.engine is None:
        for name in ("actors", "ray_address"):
            if getattr(args, name) is not None:
                raise ValueError(f"`--{name}` is about an engine: give `--engine ray`.")
        return None
    from hf_captioners.captioning.ray_engine import RayEngine

    if args.backend == "onnx":
        raise ValueError("`--engine ray` captions with torch: leave out `--backend onnx`.")
    if args.reduced_reading:
        raise ValueError("`--engine ray` reads every pixel: leave out `--reduced_reading`.")
    names = ("model", "device", "dtype", "trust_remote_code", "weights", "packed_weights", "device_map")
    actors = 1 if args.actors is None else args.actors
    loading = {name: getattr(args, name) for name in names} | {"processor_options": processor_options_of(args)}
    return RayEngine(loading, actors, args.ray_address, keep_freed_memory)


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the captions' text, such as prefix and suffix."""
    add_prompt_arguments(parser)
    parser.add_argument("--prefix", default="", help="text to write before every caption, with its blanks")
    parser.add_argument("--suffix", default="", help="text to write after every caption, with its blanks")
    parser.add_argument(
        "--bad_words",
        nargs="+",
        default=[],
        metavar="WORD",
        help="words that must not occur in captions; several words in quotation marks: as one expression",
    )


def add_confidence_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of confidence, for calibrated captioners."""
    parser.add_argument(
        "--confidence",
        nargs="?",
        const="search",
        choices=("search", "samples"),
        help="add how sure the captioner is of the caption and of each word, if it was calibrated (hf-captioners "
        "calibrate); samples: from sampled captions too, which orders words better and takes longer",
    )
    parser.add_argument(
        "--prefer_sure", action="store_true", help="with --confidence: take the surest hypothesis of the beam search"
    )


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `--prompt`, which captions continue, and `--instruction`."""
    parser.add_argument("--prompt", default="", help="text that every caption begins with, from which it goes on")
    add_instruction_argument(parser)


def add_instruction_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--instruction`."""
    parser.add_argument(
        "--instruction",
        metavar="TEXT",
        help="what the captioner is asked, if it is one that follows instructions (docs/other_models.md); no part of "
        "captions; default: that of its family, such as 'Describe this image.'",
    )


def add_ensemble_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--ensemble`, the further members of an ensemble."""
    parser.add_argument(
        "--ensemble",
        action="append",
        default=[],
        metavar="MODEL",
        help="a further captioner, name or directory, may be repeated: the captioners choose every word together",
    )


def models_of_ensemble(models: Sequence[str] | None, further: Sequence[str]) -> list[str] | None:
    """Return the captioners in `--model` and `--ensemble`; None without either."""
    if models is not None and len(models) > 1:
        print(
            "A further `--model` is the old name of `--ensemble`, and goes with the next version: type "
            f"--model {models[0]} {' '.join(f'--ensemble {model}' for model in models[1:])}",
            file=sys.stderr,
        )
    if not further:
        return None if models is None else list(models)
    return [*(models or ["default"]), *further]


def add_weights_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument of ensemble weights."""
    parser.add_argument(
        "--weights",
        nargs="+",
        type=float,
        metavar="W",
        help="weights of the captioners of an ensemble; default: equal",
    )


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for unreadable images."""
    parser.add_argument(
        "--allow_skipped",
        action="store_true",
        help="exit with status 0 although images could not be read; default: 1",
    )
    add_pixel_argument(parser)
    add_reading_argument(parser)


def add_pixel_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument of the maximum image size, see `set_pixel_limit`."""
    parser.add_argument(
        "--max_image_pixels",
        type=positive,
        metavar="N",
        help="refuse images with more pixels; default: 178,956,970",
    )


def add_reading_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument of reduced-size reading."""
    parser.add_argument(
        "--reduced_reading",
        action="store_true",
        help="decode large JPEG files at a reduced size: faster, with pixels that differ by a few grey levels, which "
        "changes some captions",
    )


def set_pixel_limit(pixels: int | None) -> None:
    """Set Pillow's maximum number of pixels from the arguments."""
    if pixels is None:
        return
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = (pixels + 1) // 2  # Pillow warns above it, and refuses above twice as many


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of model loading and decoding."""
    parser.add_argument("--batch_size", type=positive, default=16, help="images per batch; default: 16")
    parser.add_argument("--num_beams", type=positive, help="default: generation configuration of the model")
    parser.add_argument("--max_new_tokens", type=positive, help="default: generation configuration of the model")
    parser.add_argument(
        "--generate",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="options of generate() of transformers, for example do_sample=true top_p=0.9 num_return_sequences=3",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of captions that are sampled (do_sample=true); default: a new one"
    )
    parser.add_argument(
        "--backend",
        choices=("torch", "onnx"),
        help="torch, or onnx: onnxruntime runs the default captioner or a folder that `hf-captioners export` wrote; "
        "default of caption and serve: onnx where it is installed and does all that is typed, and there is no GPU",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads of an operation on a CPU; default: OMP_NUM_THREADS"
    )
    parser.add_argument("--device", help="for example cpu or cuda:0; default: an accelerator if there is one")
    parser.add_argument(
        "--device_map",
        metavar="MAP",
        help="for example auto: spread a model that is larger than one device over several (instead of --device)",
    )
    parser.add_argument(
        "--processor",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the image processor, for example max_pixels=401408",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        metavar="TYPE",
        help="data type of weights, for example bfloat16",
    )
    parser.add_argument(
        "--packed_weights",
        choices=PACKED_WEIGHTS,
        metavar="KIND",
        help="number format of the products on a CPU, for weights of type float32: float32 (default; of one image "
        "whose caption is printed, float16); float16, bfloat16 or int8, which are faster and less exact; plain: as "
        "PyTorch computes them",
    )
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run code from the repository of the model",
    )


def choose_typed_backend(args: argparse.Namespace) -> bool:
    """Set `backend` by `choose_backend` if the user named none; return whether it was set."""
    if args.backend is not None:
        return False
    from hf_captioners.captioning.backends import choose_backend

    names = ("num_beams", "max_new_tokens")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    options |= read_named_values(args.generate, "generate")
    of_torch = ("packed_weights", "weights", "device_map", "processor", "engine")
    needs_torch = any(getattr(args, name, None) for name in of_torch)
    args.backend = choose_backend(args.model, options, args.device, args.dtype, needs_torch)
    return True


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the decoding options in the arguments.

    Raises:
        ValueError: a name of `--generate` is unknown or typed twice, or a value is out of range.
    """
    from hf_captioners.captioning.backends import check_exported_options
    from hf_captioners.captioning.generation_options import check_generation_options

    names = ("num_beams", "max_new_tokens", "prompt", "instruction")
    chosen = {name: value for name in names if (value := getattr(args, name, None)) not in (None, "")}
    options = read_named_values(args.generate, "generate")
    check = check_exported_options if args.backend == "onnx" else check_generation_options
    check(options)
    if twice := sorted(chosen.keys() & options.keys()):
        raise ValueError(f"`--{twice[0]}` and `--generate {twice[0]}=...` are the same option; give one.")
    return chosen | options


def check_supported(args: argparse.Namespace) -> None:
    """Check that the named captioners are supported, before any image is read; see `require_supported`."""
    if args.backend == "onnx":
        return
    from hf_captioners.loading import require_supported

    for source in args.model or [None]:
        require_supported(source, trust_remote_code=args.trust_remote_code)


def load_model(args: argparse.Namespace) -> Any:
    """Load the pipeline of the named model; the caller packs weights later, after their last use."""
    from hf_captioners.captioning.batches import load_pipeline

    runtime = {"backend": args.backend or "torch", "threads": args.threads}
    if args.backend == "onnx":
        more = {"device_map": args.device_map, "processor_options": processor_options_of(args), **runtime}
        packed = args.packed_weights
        return load_pipeline(args.model, args.device, args.dtype, weights=args.weights, packed_weights=packed, **more)
    on_engine = getattr(args, "engine", None) is not None  # whose captioners load it too
    return load_pipeline(
        args.model,
        "cpu" if on_engine else args.device,
        args.dtype,
        args.trust_remote_code,
        args.weights,
        "plain",
        device_map=None if on_engine else args.device_map,
        processor_options=processor_options_of(args),
        **runtime,
    )


def processor_options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the image processor settings in the arguments."""
    return read_named_values(args.processor, "processor")


def with_typed_seed(pipeline: Any, options: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return options with the random seed of sampled captions, and print it; see `with_seed`."""
    from hf_captioners.captioning.generation_options import with_seed

    seeded = with_seed(pipeline, options, seed)
    if "seed" in seeded:
        print(f"Captions are sampled: --seed {seeded['seed']} samples the same ones again.", file=sys.stderr)
    return seeded


def load_packed_model(args: argparse.Namespace, one_at_a_time: bool = False) -> Any:
    """Load the pipeline of the named model, with packed weights only."""
    pipeline = load_model(args)
    pipeline.pack_weights(args.packed_weights, drop_plain=True, one_at_a_time=one_at_a_time)
    return pipeline


def run(args: argparse.Namespace) -> int:
    """Caption all images; return 1 if some are unreadable."""
    args.model = models_of_ensemble(args.model, args.ensemble)
    for path in args.inputs:
        if not path.startswith("hf:"):
            check_path("inputs", path)
    check_model_and_device(args.model, args.device)

    from hf_captioners.captioning.caption_files import part_of_output, require_free_output

    if args.output is not None and args.shard is None:  # told before torch is imported
        require_free_output(part_of_output(Path(args.output), None), args.resume, args.overwrite)

    from hf_captioners.captioning.batches import caption_batches
    from hf_captioners.captioning.image_list import find_images, shard_of, views_of
    from hf_captioners.captioning.read_ahead import workers_for
    from hf_captioners.output_files import quoted_name

    set_pixel_limit(args.max_image_pixels)
    check_outputs(args)
    engine = engine_of(args)
    is_chosen = choose_typed_backend(args)
    check_supported(args)
    options = generation_options(args)
    paths = find_images(args.inputs)
    if is_chosen and args.backend == "onnx" and any(len(views_of(name)) > 1 for name in paths):
        args.backend = "torch"  # which reads studies of several views
    images = shard_of(paths, args.shard)
    workers = workers_for(math.ceil(len(images) / args.batch_size), args.workers)
    names = ("prefix", "suffix", "bad_words", "reduced_reading", "confidence", "prefer_sure")
    texts = {name: value for name in names if (value := getattr(args, name))}
    if args.min_confidence is not None:
        texts["min_confidence"] = args.min_confidence
    report_ignored_files(args.inputs)
    if args.sidecar is not None:
        return caption_beside(args, paths, images, workers, engine, **texts, **options)
    if args.output is not None:
        return caption_into_output(args, images, workers, engine, **texts, **options)
    unreadable: list[UnreadableImage] = []
    pipeline = load_packed_model(args, len(images) == 1)
    options = with_typed_seed(pipeline, options, args.seed)
    for batch in caption_batches(pipeline, images, args.batch_size, workers, engine=engine, **texts, **options):
        for record in batch.records:
            name = "" if len(images) == 1 else f"{quoted_name(record['image'])}\t"
            for place, caption in enumerate(record.get("captions", [record["caption"]])):
                print(f"{name}{caption}{sureness(record, place)}")
        unreadable += [*batch.unreadable, *batch.doubtful]
    return report(unreadable, args.allow_skipped)


def sureness(record: Mapping[str, Any], place: int = 0) -> str:
    """Return the text printed after a caption: its confidence and, for the best caption, the words'."""
    if "confidence" not in record:
        return ""
    confidence = record.get("confidences", [record["confidence"]])[place]
    words = [] if place else [word for word in record["words"] if word["confidence"] is not None]
    shown = ", ".join(f"{word['word']} {word['confidence']:.2f}" for word in words)
    return f"\t{'?' if confidence is None else f'{confidence:.2f}'}{f' ({shown})' if shown else ''}"


def check_outputs(args: argparse.Namespace) -> None:
    """Check the output arguments and the texts to be written.

    Raises:
        ValueError: they do not.
    """
    from hf_captioners.captioning.sidecars import checked_ending

    if args.sidecar is not None:
        args.sidecar = checked_ending(args.sidecar)
    if not args.inputs:
        raise ValueError("Images are missing: hf-captioners caption DIR, or the names of images or of .txt lists.")
    if args.sidecar is not None and args.output is not None:
        raise ValueError("`--sidecar` and `--output` exclude each other; give one.")
    if args.sidecar is None and (name := next((n for n in OF_SIDECARS if getattr(args, n)), None)):
        raise ValueError(f"`--{name}` is about text files beside images: give `--sidecar`.")
    if args.output is None and args.sidecar is None and (args.resume or args.overwrite):
        raise ValueError("`--resume` and `--overwrite` need `--output` or `--sidecar`.")
    if args.confidence is None and (args.prefer_sure or args.min_confidence is not None):
        name = "prefer_sure" if args.prefer_sure else "min_confidence"
        raise ValueError(f"`--{name}` is about confidence: give `--confidence`.")
    for name in ("prefix", "suffix"):
        text = getattr(args, name)
        if len(text.splitlines()) > 1 or text.encode("utf-8", "ignore").decode() != text:
            raise ValueError(f"`--{name}` is {text!r}, expected one line of text.")
    if any(not word.strip() for word in args.bad_words):
        raise ValueError("`--bad_words` has an empty word.")


def caption_into_output(args: argparse.Namespace, images: list[str], workers: int, engine: Any, **options: Any) -> int:
    """Write the captions to the output file; return the exit status."""
    from hf_captioners.captioning.batches import caption_into_file, job_settings
    from hf_captioners.captioning.caption_files import (
        CaptionFile,
        check_coco_ids,
        part_of_output,
        require_free_output,
        seed_of_interrupted,
    )

    output = part_of_output(Path(args.output), args.shard)
    require_free_output(output, args.resume, args.overwrite)
    if output.suffix.lower() == ".json":
        check_coco_ids(images)
    seed = seed_of_interrupted(output) if args.resume and args.seed is None else args.seed
    pipeline = load_model(args)
    options = with_typed_seed(pipeline, options, seed)
    settings = job_settings(pipeline, images, args.shard, args.packed_weights, **options)
    pipeline.pack_weights(args.packed_weights, drop_plain=True)
    with (
        CaptionFile(output, settings, args.resume, args.overwrite) as file,
        note_at_interruption(lambda: f"{len(file.done):,} of {len(images):,} images are done, in {file.working}."),
    ):
        unreadable = caption_into_file(file, pipeline, images, args.batch_size, workers, engine=engine, **options)
    print(f"Wrote {len(images) - len(unreadable):,} captions to {output}.", file=sys.stderr)
    return report(unreadable, args.allow_skipped)


def caption_beside(
    args: argparse.Namespace, paths: list[str], images: list[str], workers: int, engine: Any, **options: Any
) -> int:
    """Write caption text files beside the images of this shard; return the exit status."""
    from hf_captioners.captioning import sidecars
    from hf_captioners.captioning.batches import caption_into_file, job_settings
    from hf_captioners.captioning.caption_files import seed_of_interrupted

    ending, mode = args.sidecar, mode_of(args)
    typed = [path if path.is_dir() else path.parent for path in map(Path, args.inputs)]
    faults = sidecars.check_sidecars(paths, ending, typed)
    usable = [image for image in images if image not in faults]
    unusable = [faults[image] for image in images if image in faults]
    folder = typed[0]
    plan = None if is_resumed(args, folder, mode) else confirmed_plan(args, usable, mode, typed)
    if plan is not None and not plan.images:
        print(f"There is nothing to caption.{left_out(plan, mode)}", file=sys.stderr)
        return report([], args.allow_skipped, unusable)
    journal = sidecars.journal_of(folder, ending, args.shard)
    seed = seed_of_interrupted(journal) if args.resume and args.seed is None else args.seed
    pipeline = load_model(args)
    options = with_typed_seed(pipeline, options, seed)
    settings = job_settings(pipeline, images, args.shard, args.packed_weights, **options)
    pipeline.pack_weights(args.packed_weights, drop_plain=True)
    with sidecars.SidecarFiles(folder, ending, mode, settings, args.shard, args.resume, typed) as files:
        if plan is None:
            plan = confirmed_plan(args, [image for image in usable if image not in files.done], mode, typed)
        files.replaceable = plan.replaceable
        chosen = files.done.union(plan.images)
        images = [image for image in usable if image in chosen]  # in the batches of an undisturbed job
        with note_at_interruption(lambda: written(files, len(images), folder)):
            unreadable = caption_into_file(files, pipeline, images, args.batch_size, workers, engine=engine, **options)
    print(f"Wrote {len(images) - len(unreadable):,} text files beside images.{left_out(plan, mode)}", file=sys.stderr)
    return report(unreadable, args.allow_skipped, unusable)


def report_ignored_files(inputs: Sequence[str]) -> None:
    """Print how many files in folders are not images by their names, and which endings are read."""
    from hf_captioners.captioning.image_list import ignored_files, read_endings
    from hf_captioners.output_files import printable

    ignored = ignored_files(inputs)
    for ending, paths in ignored.items():
        kind = f"that end with {ending}" if ending else "without an ending"
        print(f"left out: {len(paths):,} file(s) {printable(kind)}, such as {printable(paths[0])}", file=sys.stderr)
    if ignored:
        print(f"Images have the endings {read_endings()}.", file=sys.stderr)


def report(unreadable: "Sequence[UnreadableImage]", allow_skipped: bool = False, unusable: Sequence[str] = ()) -> int:
    """Print unreadable images and those without a possible text file; return the exit status."""
    from hf_captioners.captioning.batches import is_doubtful
    from hf_captioners.output_files import printable

    if doubtful := [image for image in unreadable if is_doubtful(image)]:
        print(f"left out: {len(doubtful):,} caption(s) below `--min_confidence`", file=sys.stderr)
        unreadable = [image for image in unreadable if not is_doubtful(image)]
    for reason in [*(image.reason for image in unreadable), *unusable]:
        print(f"not captioned: {printable(reason)}", file=sys.stderr)
    if unreadable:
        print(f"{len(unreadable):,} image(s) could not be read.", file=sys.stderr)
    if unusable:
        print(f"{len(unusable):,} image(s) can have no text file because of their names.", file=sys.stderr)
    return 1 if (unreadable or unusable) and not allow_skipped else 0
