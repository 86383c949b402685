"""`hf-captioners push`: a captioner to the Hub."""

import argparse

NAME = "push"
HELP = "put a captioner on the Hub, with its code and card"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to push, and where to."""
    parser.add_argument("directory", metavar="DIR", help="folder of the captioner, as training writes it")
    parser.add_argument("repo_id", metavar="REPO", help="OWNER/NAME, or NAME for your own; made if it is missing")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--create_pr", action="store_true", help="propose a pull request, change nothing")
    parser.add_argument("--revision", metavar="BRANCH", help="branch, made if it is missing; default: main")
    parser.add_argument("--message", help="of the commit")


def run(args: argparse.Namespace) -> int:
    """Push; the address on stdout."""
    from hf_captioners.hub.pushing import MESSAGE, push_checkpoint

    commit = push_checkpoint(
        args.directory,
        args.repo_id,
        private=args.private,
        create_pr=args.create_pr,
        revision=args.revision,
        message=args.message or MESSAGE,
    )
    print(commit.pr_url or commit.commit_url)
    return 0
