"""Deployment of a captioner on the Hub: Gradio Space, and request handler of an Inference Endpoint."""

import os
import re
from importlib.metadata import metadata, requires
from importlib.resources import files

import jinja2
from huggingface_hub import CommitOperationAdd, HfApi

from hf_captioners._version import __version__

from .card_facts import CheckpointFacts, TrainingFacts

HANDLER = "handler.py"
APP = "app.py"
# Packages that the remote code needs; a Space already has gradio.
SPACE_PACKAGES = ("torch", "torchvision", "transformers", "timm", "numpy", "pillow")
WARNING = " Not a medical device: captions of X-rays are not findings."


def require_servable(directory: str | os.PathLike[str]) -> None:
    """Raise an error unless a checkpoint captions images by its own files of code, without this package.

    Args:
        directory: directory of the checkpoint.

    Raises:
        ValueError: it is an adapter, reads region features, or is a captioner of a different library.
    """
    facts = CheckpointFacts.read(directory)
    if facts.adapter_of or facts.architecture is None or facts.vision is None:
        kind = "an adapter" if facts.adapter_of else f"a {facts.model_type}"
        if facts.architecture is not None and not facts.adapter_of:
            kind += " without a vision model"
        raise ValueError(
            f"{os.fspath(directory)} is {kind}. A Space and an endpoint need a captioner of this library that reads "
            "images; push it without `space` and `endpoint`."
        )


def endpoint_handler() -> str:
    """Return the source of `handler.py`, which Inference Endpoints load from the repository."""
    return _template("endpoint_handler.py")


def space_files(directory: str | os.PathLike[str], repo_id: str, endpoint: str) -> dict[str, str]:
    """Render the files of a Space, by name.

    Args:
        directory: directory of the captioner.
        repo_id: name of the captioner on the Hub.
        endpoint: URL of the Hub.

    Returns:
        Contents by file name: app, requirements and card.
    """
    training = TrainingFacts.load(directory)
    values = {
        "repo": repo_id,
        "title": repo_id.rpartition("/")[2],
        "address": f"{endpoint}/{repo_id}",
        "python": re.sub(r"[^\d.]", "", metadata("hf-captioners")["Requires-Python"]),
        "warning": WARNING if training is not None and training.is_medical else "",
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    rendered = {
        name: environment.from_string(_template(template)).render(values)
        for name, template in ((APP, "space_app.py.jinja"), ("README.md", "space_card.md.jinja"))
    }
    return rendered | {"requirements.txt": "\n".join(space_requirements()) + "\n"}


def space_requirements() -> list[str]:
    """Return the packages that a checkpoint's code needs, with the lower bounds of this library."""
    requirements = {re.split(r"[^\w.-]", line)[0]: line for line in requires("hf-captioners") or () if ";" not in line}
    return [requirements[name] for name in SPACE_PACKAGES]


def push_space(
    directory: str | os.PathLike[str],
    repo_id: str,
    space_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
) -> str:
    """Create a Space that captions images. A Space that already has an app is not changed.

    ```python
    push_space("my_captioner", "tester/captioner", "tester/captioner")
    ```

    Args:
        directory: directory of the captioner.
        repo_id: name of the captioner on the Hub, as `owner/name`.
        space_id: name of the Space, as `owner/name`; it may equal `repo_id`.
        private: create a private Space; default: the setting of the account.
        token: access token; default: the token of `hf auth login` or `HF_TOKEN`.

    Returns:
        URL of the Space.

    Raises:
        HfHubHTTPError: the Hub refused, see `explain_hub_errors`.
    """
    api = HfApi(token=token, library_name="hf-captioners", library_version=__version__)
    address = f"{api.endpoint}/spaces/{space_id}"
    api.create_repo(space_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    if api.file_exists(space_id, APP, repo_type="space"):
        return address
    contents = space_files(directory, repo_id, api.endpoint)
    operations = [CommitOperationAdd(name, text.encode("utf-8")) for name, text in contents.items()]
    api.create_commit(space_id, operations, commit_message=f"Add app for {repo_id}", repo_type="space")
    return address


def _template(name: str) -> str:
    return files("hf_captioners.hub_cards").joinpath(name).read_text(encoding="utf-8")
