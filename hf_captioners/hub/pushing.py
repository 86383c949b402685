"""Pushing a checkpoint to the Hub: everything that a stranger needs, in one commit."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_captioners._version import __version__

from .card_facts import SAMPLE_IMAGE, sample_images
from .card_merging import front_matter, merge_cards, read_card
from .cards import CARD, make_card, read_text
from .checkpoint_files import PROCESSOR, checkpoint_files
from .serving import HANDLER, endpoint_handler, require_servable

logger = logging.get_logger(__name__)

# Weights of an earlier push that a new one has under other names, and images that it does not show.
STALE = re.compile(rf"(adapter_)?model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|{SAMPLE_IMAGE.pattern}")
MESSAGE = "Upload captioner"


def push_checkpoint(
    directory: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    create_pr: bool = False,
    revision: str | None = None,
    message: str = MESSAGE,
    description: str | None = None,
    token: str | bool | None = None,
    with_processor: bool = True,
    with_images: bool = False,
    with_handler: bool = False,
    card: str | None = None,
) -> CommitInfo:
    """Push a saved captioner: weights, configurations, processor, tokenizer, code and card, as one commit.

    The repository is made if it is missing. A card that a person wrote, there or here, is kept; see `merge_cards`.
    Where nothing differs, nothing is pushed.

    Args:
        directory: what `save_pretrained` wrote.
        repo_id: `owner/name`, or `name` for your own.
        private: make a new repository private; default: as the account has it.
        create_pr: propose the commit as a pull request instead of changing the repository.
        revision: branch to push to, made if it is missing; default: `main`.
        message, description: of the commit.
        token: an access token; default: that of `hf auth login` or `HF_TOKEN`.
        with_processor: refuse a directory without a processor.
        with_images: also push the evaluation images that training left beside the card, and show them there. Only
            for images that you may publish.
        with_handler: add the `handler.py` of Inference Endpoints, unless there is one.
        card: the directory's card, if it was already rendered for this repository by `make_card`; default: render it.

    Returns:
        What the Hub says of the commit.

    Raises:
        FileNotFoundError, ValueError: the directory is no whole checkpoint, a card cannot be read, or the repository
            is of another kind or openness. Nothing was pushed.
        PermissionError: no token, or no right to write.
        OSError: the Hub refused for another reason.
    """
    files = checkpoint_files(directory, with_processor)
    files += sample_images(directory) if with_images else []
    if with_handler:
        require_servable(directory)
    api = HfApi(token=token, library_name="hf-captioners", library_version=__version__)
    with explain_hub_errors(repo_id):
        repo_id = prepare_repository(api, repo_id, private, create_pr)
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        info = api.model_info(repo_id, revision=revision)
        there = {entry.rfilename for entry in info.siblings or ()}
        present = None
        if CARD in there:
            present = read_text(Path(api.hf_hub_download(repo_id, CARD, revision=info.sha)))
        card = card_to_push(directory, repo_id, present, with_images, card)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path.name, path) for path in files
        ]
        operations.append(CommitOperationAdd(CARD, card.encode("utf-8")))
        if with_handler and HANDLER not in there:
            operations.append(CommitOperationAdd(HANDLER, endpoint_handler().encode("utf-8")))
        pushed = {path.name for path in files}
        operations += [CommitOperationDelete(name) for name in sorted(there - pushed) if STALE.fullmatch(name)]
        return api.create_commit(
            repo_id,
            operations,
            commit_message=message,
            commit_description=description,
            revision=revision,
            create_pr=create_pr,
            parent_commit=info.sha,  # a card that somebody changes meanwhile is not overwritten
        )


def card_to_push(
    directory: str | os.PathLike[str],
    repo_id: str,
    present: str | None,
    with_images: bool = False,
    rendered: str | None = None,
) -> str:
    """The card for a repository: the directory's, with the repository's name in it, joined with the one there.

    Args:
        directory: of the checkpoint; repo_id: of the repository; present: the repository's card, if it has one.
        with_images: show the evaluation images.
        rendered: what `make_card` returned for these arguments, if it was already called.

    Raises:
        ValueError: metadata of a card cannot be read.
    """
    path = Path(directory, CARD)
    rendered = make_card(directory, repo_id, with_images) if rendered is None else rendered
    here = merge_cards(read_text(path), rendered, str(path))
    card = merge_cards(present, here, f"{CARD} of {repo_id}")
    read_card(card, f"{CARD} of {repo_id}")
    return card


def prepare_repository(api: HfApi, repo_id: str, private: bool | None, create_pr: bool) -> str:
    """Find or make the repository.

    Returns:
        Its full name.

    Raises:
        ValueError: a data set or Space has this name, a private one was asked for and it is public, or a pull request
            for a repository that does not exist.
    """
    if "/" not in repo_id:
        repo_id = f"{api.whoami()['name']}/{repo_id}"
    if api.repo_exists(repo_id):
        if private and api.model_info(repo_id).private is False:
            raise ValueError(
                f"{repo_id} exists and is public. Make it private in its settings first, or leave private out."
            )
        return repo_id
    for kind in ("dataset", "space"):
        if api.repo_exists(repo_id, repo_type=kind):
            raise ValueError(f"{repo_id} is a {kind} repository, expected one of a model. Choose another name.")
    if create_pr:
        raise ValueError(f"There is no repository {repo_id} to propose a pull request to. Leave create_pr out.")
    return api.create_repo(repo_id, private=private, exist_ok=True).repo_id


@contextmanager
def explain_hub_errors(repo_id: str) -> Iterator[None]:
    """Say what to do about refusals of the Hub.

    Raises:
        PermissionError: nobody is signed in, or the account may not write there.
        OSError: the repository changed meanwhile, or the Hub refused for another reason.
    """
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise PermissionError(
            f"Nobody is signed in to the Hub, so nothing can be pushed to {repo_id}. Sign in with: hf auth login (or "
            "set HF_TOKEN to a token that may write)."
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        said = " ".join((error.server_message or str(error)).split())
        if status == 401:
            raise PermissionError(
                f"The Hub does not know who wants to push to {repo_id} ({said}). Sign in with: hf auth login (or set "
                "HF_TOKEN to a token that may write)."
            ) from error
        if status == 403:
            raise PermissionError(
                f"This account or token may not write to {repo_id} ({said}). Use a token that may write, another "
                "owner, or propose the change with create_pr."
            ) from error
        if status == 412:
            raise OSError(
                f"{repo_id} was changed by somebody during the push; nothing was pushed. Push again."
            ) from error
        raise OSError(f"The Hub refused the push to {repo_id}: {said}") from error


def push_model(
    model: PreTrainedModel,
    repo_id: str,
    *,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str = "50GB",
    tags: list[str] | None = None,
) -> CommitInfo:
    """`push_to_hub` of every captioner of this library: as in transformers, with a card that tells the truth.

    Args:
        model: the captioner; its processor is pushed by `processor.push_to_hub(repo_id)`.
        repo_id, private, token, revision, create_pr: see `push_checkpoint`.
        commit_message, commit_description: of the commit.
        max_shard_size: largest file of weights.
        tags: further tags of the card.

    Raises:
        ValueError, PermissionError, OSError: see `push_checkpoint`.
    """
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory, max_shard_size=max_shard_size)
        if tags:
            Path(directory, CARD).write_text(front_matter({"tags": tags}), encoding="utf-8")
        commit = push_checkpoint(
            directory,
            repo_id,
            private=private,
            create_pr=create_pr,
            revision=revision,
            message=commit_message or MESSAGE,
            description=commit_description,
            token=token,
            with_processor=False,
        )
    if not create_pr and not has_processor(commit.repo_url.repo_id, revision, token):
        logger.warning(f"{repo_id} has no processor yet. Push it, too: processor.push_to_hub({repo_id!r}).")
    return commit


def has_processor(repo_id: str, revision: str | None, token: str | bool | None) -> bool:
    """Whether a repository holds a processor."""
    files: Any = HfApi(token=token).list_repo_files(repo_id, revision=revision)
    return any(name in files for name in PROCESSOR)
