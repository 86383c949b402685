"""`HubTrainer`: trainer that writes a model card with every saved model and pushes complete checkpoints."""

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi
from transformers import Seq2SeqTrainer, TrainingArguments
from transformers.trainer_utils import HubStrategy
from transformers.utils import logging

from hf_captioners.hub.card_facts import sample_images
from hf_captioners.hub.cards import CARD
from hf_captioners.hub.checkpoint_files import checkpoint_files, require_base_on_hub
from hf_captioners.hub.pushing import explain_hub_errors, prepare_repository, push_checkpoint
from hf_captioners.output_files import explain_write_errors

from .card_writer import CardWriter

logger = logging.get_logger(__name__)

ADVICE = (
    "Free space, then resume with `resume` from the last complete checkpoint. `save_total_limit=1` keeps fewer "
    "checkpoints."
)


class HubTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that writes model cards and pushes saved models to the Hub.

    Every save also writes `card_facts.json` and `README.md`. With `push_to_hub=True` every save becomes one commit of
    the files that are needed to use the model, instead of the whole output directory: no optimizer, no stored
    features, no pickle. Pushes run in the background, one after the other, and training waits for them at its end. No
    save is skipped because an earlier push is still running: `hub_always_push` has no effect.
    """

    args: TrainingArguments
    card: CardWriter
    _rendered_card: str | None = None  # of the last save
    _pusher: ThreadPoolExecutor | None = None
    _pending_pushes: tuple["Future[CommitInfo]", ...] = ()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        with self._without_secrets(), explain_write_errors(str(self.args.output_dir), ADVICE):
            super()._save(output_dir, state_dict)
        self._rendered_card = self.card.write(self, Path(output_dir or str(self.args.output_dir)))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with explain_write_errors(str(self.args.output_dir), ADVICE):
            super()._save_checkpoint(model, trial)

    @contextmanager
    def _without_secrets(self) -> Iterator[None]:
        """Context manager that hides access tokens while transformers pickles `training_args.bin`."""
        full = self.args
        self.args = without_secrets(full)
        try:
            yield
        finally:
            self.args = full

    @property
    def public_name(self) -> str:
        """Name of the Hub repository, or of the output directory."""
        return self.hub_model_id or self.args.hub_model_id or Path(str(self.args.output_dir)).resolve().name

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the Hub repository before training, unless it exists.

        Args:
            token: an access token; default: `hub_token` of the arguments.
            private: create a private repository; default: `hub_private_repo` of the arguments.

        Raises:
            ValueError: `hub_strategy` asks for optimizer states on the Hub, the captioner of an adapter is not there,
                or see `prepare_repository`.
            PermissionError: you are not signed in, or the account may not write there.
        """
        for config in getattr(self.model, "peft_config", {}).values():
            require_base_on_hub(config.base_model_name_or_path, "The adapter to train and to push")
        if not self.is_world_process_zero():
            return
        if self.args.hub_strategy not in (HubStrategy.END, HubStrategy.EVERY_SAVE):
            raise ValueError(
                f"`hub_strategy={self.args.hub_strategy.value!r}` would push pickled optimizer states, expected 'end' "
                "or 'every_save'."
            )
        name = self.args.hub_model_id or Path(str(self.args.output_dir)).resolve().name
        private = self.args.hub_private_repo if private is None else private
        with explain_hub_errors(name):
            self.hub_model_id = prepare_repository(HfApi(token=token or self.args.hub_token), name, private, False)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        with_images: bool = False,
    ) -> Any:
        """Save and push the model with processor, code and card, see `push_checkpoint`.

        Args:
            commit_message: of the commit.
            blocking: wait until the push has ended.
            token, revision, private: default: `hub_token`, `hub_revision` and `hub_private_repo` of the arguments.
            with_images: also push the evaluation images of the card; only if you may publish them.

        Returns:
            The `CommitInfo` of the commit, a `Future` of it, or None in processes other than the first.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.card.shows_images = with_images
        try:
            self.save_model(_internal_call=True)
        finally:
            self.card.shows_images = False
        if not self.is_world_process_zero():
            return None
        push = self._push_later(str(self.args.output_dir), str(commit_message), token, revision, with_images)
        return push.result() if blocking else push

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.is_world_process_zero() and self.args.hub_strategy != HubStrategy.END:
            self._push_later(checkpoint_folder, f"Training in progress, step {self.state.global_step}")

    def _finish_current_push(self) -> None:
        """Wait for all pushes, including queued ones."""
        wait(self._pending_pushes)

    def _push_later(
        self,
        directory: str,
        message: str,
        token: str | None = None,
        revision: str | None = None,
        with_images: bool = False,
    ) -> "Future[CommitInfo]":
        """Queue the push of a copy, because the checkpoint itself may be deleted in the meantime.

        One thread pushes in the order of the saves: two pushes at the same time would start from the same commit, and
        the Hub refuses the second one.
        """
        card = Path(directory, CARD)
        files = [*checkpoint_files(directory), *sample_images(directory), *([card] if card.is_file() else [])]
        copied = tempfile.mkdtemp(prefix="captioner-")
        for path in files:
            copy = Path(copied, path.relative_to(directory))
            copy.parent.mkdir(exist_ok=True)  # of a second tokenizer
            _link_or_copy(path, copy)
        rendered = self._rendered_card
        # Read here: when the thread runs, a save may have hidden the token from `args` for a moment.
        revision, token = revision or self.args.hub_revision, token or self.args.hub_token

        def push() -> CommitInfo:
            try:
                return push_checkpoint(
                    copied,
                    str(self.hub_model_id),
                    revision=revision,
                    message=message,
                    token=token,
                    with_images=with_images,
                    card=rendered,
                )
            except Exception as error:
                logger.warning(f"The push {message!r} failed: {error}")
                raise
            finally:
                shutil.rmtree(copied, ignore_errors=True)

        if self._pusher is None:
            self._pusher = ThreadPoolExecutor(1)
        future = self._pusher.submit(push)
        self._pending_pushes = (*(one for one in self._pending_pushes if not one.done()), future)
        return future


def without_secrets(args: TrainingArguments) -> TrainingArguments:
    """Return a copy of training arguments without access tokens, which are fields named `..._token`.

    Args:
        args: the arguments; they do not change.
    """
    copied = copy.copy(args)
    for name in vars(args):
        if name.endswith("_token") and isinstance(getattr(args, name), str):
            setattr(copied, name, None)
    return copied


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a different file system
        shutil.copyfile(source, target)
