"""`hf-captioners serve`: HTTP server for captions."""

import argparse
import sys
from pathlib import Path
from typing import Any

from .caption import (
    add_confidence_arguments,
    add_model_arguments,
    add_pixel_argument,
    add_prompt_arguments,
    add_reading_argument,
    choose_typed_backend,
    generation_options,
    load_packed_model,
    set_pixel_limit,
    with_typed_seed,
)
from .paths import check_model_and_device

NAME = "serve"
HELP = "answer HTTP requests with captions"
EXAMPLES = """example:
  hf-captioners serve my_captioner
  curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg http://127.0.0.1:8000/caption"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of model, address, limits and decoding."""
    parser.add_argument(
        "model",
        nargs="?",
        help="captioner: name or directory; default: the captioner that an installed package offers",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; default: 127.0.0.1, this machine only"
    )
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: a free one")
    parser.add_argument(
        "--allowed_hosts",
        nargs="+",
        default=[],
        metavar="NAME",
        help="further names by which clients may call the server; default: those of this machine, and --host",
    )
    parser.add_argument("--max_bytes", type=int, default=20 * 2**20, help="largest image in bytes; default: 20971520")
    parser.add_argument("--max_requests", type=int, default=64, help="requests at the same time; default: 64")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="until a request is answered; default: 60"
    )
    add_prompt_arguments(parser)
    add_confidence_arguments(parser)
    add_pixel_argument(parser)
    add_reading_argument(parser)
    add_model_arguments(parser)
    parser.set_defaults(weights=None)


def run(args: argparse.Namespace) -> int:
    """Serve until the process is terminated."""
    check_model_and_device(args.model, args.device)
    if not 0 <= args.port <= 65535:
        raise ValueError(f"`--port` is {args.port}, expected 0 to 65535.")
    try:
        from aiohttp import web
    except ImportError:
        raise ImportError("`serve` needs aiohttp: pip install 'hf-captioners[serve]'") from None

    from hf_captioners.captioning.columns import CaptionBatches
    from hf_captioners.server.application import Limits, make_application

    set_pixel_limit(args.max_image_pixels)
    limits = Limits(args.max_bytes, args.max_requests, args.timeout)
    choose_typed_backend(args)
    options = generation_options(args)
    if args.backend != "onnx":  # its libraries take seconds to be imported
        print(f"Loading {args.model or 'the default captioner'} with torch ...", file=sys.stderr, flush=True)
    pipeline = load_packed_model(args)
    name_captioner(args, pipeline)
    options = with_typed_seed(pipeline, options, args.seed)
    if args.prefer_sure and args.confidence is None:
        raise ValueError("`--prefer_sure` is about confidence: give `--confidence`.")
    sure = {"confidence": args.confidence, "prefer_sure": args.prefer_sure}
    captioner = CaptionBatches(pipeline, reduced_reading=args.reduced_reading, **sure, **options)
    _ = captioner.assessor  # says before any request that the captioner is not calibrated
    application = make_application(
        captioner, args.batch_size, limits, [args.host, *args.allowed_hosts], captioner_name(args)
    )
    web.run_app(
        application,
        host=args.host,
        port=args.port,
        print=print_address,
        access_log=None,
        shutdown_timeout=limits.timeout,  # of requests that are being answered when it ends
        handler_cancellation=True,  # nobody waits for the caption of a client that has gone
    )
    return 0


def captioner_name(args: argparse.Namespace) -> str:
    """Return the captioner's name without parent folders."""
    from hf_captioners.default_model import default_model, is_default

    if is_default(args.model):
        return default_model().name
    path = Path(args.model)
    return path.resolve().name if path.is_dir() else str(args.model)


def name_captioner(args: argparse.Namespace, pipeline: Any) -> None:
    """Print the name of the loaded captioner, unless it is the default one, which is printed at loading."""
    from hf_captioners.default_model import is_default

    if is_default(args.model):
        return
    device = getattr(pipeline, "device", None)
    runtime = "onnxruntime" if args.backend == "onnx" else f"torch ({device})"
    kind = getattr(getattr(pipeline.model, "config", None), "model_type", None)
    print(f"Captioner: {args.model}{f' ({kind})' if kind else ''}; runs on {runtime}.", file=sys.stderr, flush=True)


def print_address(text: str) -> None:
    """Extract and print the server's address from aiohttp's message."""
    address = text.partition("\n")[0].strip("= ")
    print(f"{address}\nOpen it in a browser to try it. Ctrl+C ends it.", file=sys.stderr, flush=True)
