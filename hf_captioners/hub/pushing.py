"""Upload of a complete checkpoint to the Hub in one commit."""

import os
import re
import shutil
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
from hf_captioners.default_model import is_default

from .card_facts import FACTS_FILE, SAMPLE_IMAGE, sample_images
from .card_merging import front_matter, merge_cards, read_card
from .cards import CARD, make_card, read_text
from .checkpoint_files import PROCESSOR, checkpoint_files
from .serving import HANDLER, endpoint_handler, require_servable

logger = logging.get_logger(__name__)

# Files of an earlier push that a new push may replace: weights under other names, and thumbnails.
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
    """Upload a saved captioner with its model card in one commit.

    The commit contains weights, configurations, processor, tokenizer, code and card. The repository is created if it
    is missing. Text that a person wrote into the local or the remote card is kept, see `merge_cards`. If nothing
    changed, no commit is made.

    ```python
    push_checkpoint("my_captioner", "captioner", private=True, message="First model")
    ```

    Args:
        directory: directory that `save_pretrained` wrote.
        repo_id: `owner/name`, or `name` for a repository of your account.
        private: create a new repository as private; default: the setting of the account.
        create_pr: open a pull request instead of committing to the branch.
        revision: branch to push to, created if it is missing; default: `main`.
        message: title of the commit.
        description: description of the commit.
        token: access token; default: the token of `hf auth login` or `HF_TOKEN`.
        with_processor: whether a processor is required.
        with_images: also push the thumbnails of evaluation images and show them in the card. Use it only for images
            that you may publish.
        with_handler: add the `handler.py` of Inference Endpoints, unless the repository has one.
        card: the card, if it was already rendered for this repository by `make_card`; default: render it.

    Returns:
        The commit.

    Raises:
        FileNotFoundError, ValueError: the checkpoint is incomplete, a card cannot be read, or the repository has a
            different type or visibility. Nothing is pushed.
        PermissionError: no token is set, or it has no write access.
        OSError: the Hub refused the push for a different reason.
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
        names = {entry.rfilename for entry in info.siblings or ()}
        present = None
        if CARD in names:
            present = read_text(Path(api.hf_hub_download(repo_id, CARD, revision=info.sha)))
        card = card_to_push(directory, repo_id, present, with_images, card)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path.relative_to(directory).as_posix(), path) for path in files
        ]
        operations.append(CommitOperationAdd(CARD, card.encode("utf-8")))
        if with_handler and HANDLER not in names:
            operations.append(CommitOperationAdd(HANDLER, endpoint_handler().encode("utf-8")))
        pushed = {path.name for path in files}
        operations += [CommitOperationDelete(name) for name in sorted(names - pushed) if STALE.fullmatch(name)]
        return api.create_commit(
            repo_id,
            operations,
            commit_message=message,
            commit_description=description,
            revision=revision,
            create_pr=create_pr,
            parent_commit=info.sha,  # refuses to overwrite a card that changed in the meantime
        )


@contextmanager
def complete_folder(directory: str, merge: bool = False) -> Iterator[str]:
    """Context that yields a directory with all files of a checkpoint that is pushed.

    Args:
        directory: that directory, or `"default"`: the captioner that a package offers has no code, so it is saved into
            a temporary directory, which adds that of this library.
        merge: whether it is an adapter, to be merged with its captioner in a temporary directory.
    """
    if not (is_default(directory) or merge):
        yield directory
        return
    # Importing transformers registers the architectures, which needs this module, maybe while `loading` is imported.
    from hf_captioners.loading import load_captioner, merge_adapter

    with tempfile.TemporaryDirectory() as place:
        for part in merge_adapter(directory) if merge else load_captioner():
            part.save_pretrained(place)
        facts = Path(directory, FACTS_FILE)
        if merge and facts.is_file():
            shutil.copyfile(facts, Path(place, FACTS_FILE))
        yield place


def card_to_push(
    directory: str | os.PathLike[str],
    repo_id: str,
    present: str | None,
    with_images: bool = False,
    rendered: str | None = None,
) -> str:
    """Render the card of a repository, merged with the cards in the directory and on the Hub.

    Args:
        directory: directory of the checkpoint.
        repo_id: full name of the repository.
        present: card of the repository; None if it has none.
        with_images: show the thumbnails of evaluation images.
        rendered: result of `make_card` for these arguments, if it was already called.

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
    """Create the repository if it does not exist; return its full name.

    Returns:
        Its full name.

    Raises:
        ValueError: a data set or Space has this name, `private` is set and the repository is public, or `create_pr`
            is set and the repository does not exist.
    """
    if "/" not in repo_id:
        repo_id = f"{api.whoami()['name']}/{repo_id}"
    if api.repo_exists(repo_id):
        if private and api.model_info(repo_id).private is False:
            raise ValueError(
                f"{repo_id} exists and is public. Make it private in its settings first, or omit `private`."
            )
        return repo_id
    for kind in ("dataset", "space"):
        if api.repo_exists(repo_id, repo_type=kind):
            raise ValueError(
                f"{repo_id} is a {kind} repository, expected a model repository. Choose a different name."
            )
    if create_pr:
        raise ValueError(f"There is no repository {repo_id} to open a pull request in. Omit `create_pr`.")
    return api.create_repo(repo_id, private=private, exist_ok=True).repo_id


@contextmanager
def explain_hub_errors(repo_id: str) -> Iterator[None]:
    """Context that turns errors of the Hub into messages that state the remedy.

    Args:
        repo_id: name of the repository, for the messages.

    Raises:
        PermissionError: no token is set, or it has no write access.
        OSError: the repository changed in the meantime, or the Hub refused for a different reason.
    """
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise PermissionError(
            f"No token of the Hub is set, so nothing can be pushed to {repo_id}. Sign in with: hf auth login (or set "
            "HF_TOKEN to a token with write access)."
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        reason = " ".join((error.server_message or str(error)).split())
        if status == 401:
            raise PermissionError(
                f"The Hub did not accept the token for {repo_id} ({reason}). Sign in with: hf auth login (or set "
                "HF_TOKEN to a token with write access)."
            ) from error
        if status == 403:
            raise PermissionError(
                f"This account or token may not write to {repo_id} ({reason}). Use a token with write access, choose "
                "a different owner, or open a pull request with create_pr."
            ) from error
        if status == 412:
            raise OSError(f"{repo_id} changed during the push; nothing was pushed. Push again.") from error
        raise OSError(f"The Hub refused the push to {repo_id}: {reason}") from error


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
    """Upload a captioner with a model card: the method `push_to_hub` of every captioner of this library.

    ```python
    model.push_to_hub("captioner", commit_message="First model")
    processor.push_to_hub("captioner")  # the processor is pushed separately
    ```

    Args:
        model: the captioner.
        repo_id, private, token, revision, create_pr: see `push_checkpoint`.
        commit_message: title of the commit.
        commit_description: description of the commit.
        max_shard_size: largest size of a file of weights.
        tags: additional tags of the card.

    Returns:
        The commit.

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
        logger.warning(f"{repo_id} has no processor yet. Push it as well: processor.push_to_hub({repo_id!r}).")
    return commit


def has_processor(repo_id: str, revision: str | None, token: str | bool | None) -> bool:
    """Return True if a repository contains a processor."""
    files: Any = HfApi(token=token).list_repo_files(repo_id, revision=revision)
    return any(name in files for name in PROCESSOR)
