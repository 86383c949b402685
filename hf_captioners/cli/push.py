"""`hf-captioners push`: push a captioner to the Hub."""

import argparse
import re

from hf_captioners.default_model import is_default

from .paths import check_path, check_source

NAME = "push"
HELP = "push a captioner to the Hub, with its code and card"

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of captioner and repository."""
    parser.add_argument("directory", metavar="DIR", help="directory of the captioner, or `default`: the installed one")
    parser.add_argument(
        "repo_id", metavar="REPO", help="OWNER/NAME, or NAME for your own account; created if it is missing"
    )
    parser.add_argument("--private", action="store_true", default=None, help="create the repository as private")
    parser.add_argument("--create_pr", action="store_true", help="open a pull request instead of a commit")
    parser.add_argument("--revision", metavar="BRANCH", help="branch, created if it is missing; default: main")
    parser.add_argument("--message", help="commit message")
    parser.add_argument(
        "--images",
        action="store_true",
        help="also push the evaluation images of the card; only if you may publish them",
    )
    parser.add_argument(
        "--merge_adapter", action="store_true", help="merge an adapter with its captioner and push the whole captioner"
    )
    parser.add_argument("--endpoint", action="store_true", help="add the handler.py of Inference Endpoints")
    parser.add_argument(
        "--space",
        nargs="?",
        const="",
        metavar="NAME",
        help="also create a Space that captions images; default: of the same name",
    )


def run(args: argparse.Namespace) -> int:
    """Push and print the URLs."""
    if not is_default(args.directory):
        check_path("DIR", args.directory, folder=True)
    check_source("DIR", args.directory)
    if not REPOSITORY.fullmatch(args.repo_id):
        raise ValueError(f"`REPO` is {args.repo_id!r}, expected OWNER/NAME, or NAME for your own account.")

    from hf_captioners.hub.pushing import complete_folder

    with complete_folder(args.directory, args.merge_adapter) as directory:
        push(args, directory)
    return 0


def push(args: argparse.Namespace, directory: str) -> None:
    """Push a complete checkpoint, and a Space if requested."""
    from hf_captioners.hub.pushing import MESSAGE, explain_hub_errors, push_checkpoint
    from hf_captioners.hub.serving import push_space, require_servable

    if args.space is not None:
        if args.create_pr or args.revision:
            raise ValueError("`--space` loads the branch main: leave --create_pr and --revision out.")
        require_servable(directory)
    commit = push_checkpoint(
        directory,
        args.repo_id,
        private=args.private,
        create_pr=args.create_pr,
        revision=args.revision,
        message=args.message or MESSAGE,
        with_images=args.images,
        with_handler=args.endpoint,
    )
    print(commit.pr_url or commit.commit_url)
    if args.space is not None:
        repo_id = commit.repo_url.repo_id
        space_id = args.space or repo_id
        space_id = space_id if "/" in space_id else f"{repo_id.partition('/')[0]}/{space_id}"
        with explain_hub_errors(space_id):
            print(push_space(directory, repo_id, space_id, private=args.private))
