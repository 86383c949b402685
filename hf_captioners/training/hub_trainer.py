"""What a trainer does for the Hub: it writes a card beside every saved model, and pushes whole checkpoints."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import logging
from transformers.utils.hub import PushInProgress

from hf_captioners.hub.card_facts import sample_images
from hf_captioners.hub.checkpoint_files import checkpoint_files
from hf_captioners.hub.pushing import explain_hub_errors, prepare_repository, push_checkpoint

from .card_writer import CardWriter

logger = logging.get_logger(__name__)


class HubTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that describes and pushes what it saves.

    Beside the weights it writes `card_facts.json` and `README.md`. With `push_to_hub=True` every save is one commit of
    the files that a stranger needs, instead of everything in the output directory: no optimizer, no stored features,
    no pickle.
    """

    card: CardWriter

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        self.card.write(self, Path(output_dir or str(self.args.output_dir)))

    @property
    def public_name(self) -> str:
        """Name on the Hub, or of the output directory."""
        return self.hub_model_id or self.args.hub_model_id or Path(str(self.args.output_dir)).resolve().name

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Find or make the repository, before any training.

        Raises:
            ValueError: `hub_strategy` wants optimizer states on the Hub, or see `prepare_repository`.
            PermissionError: nobody is signed in, or the account may not write there.
        """
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
        self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        with_images: bool = False,
    ) -> Any:
        """Save the model and push it with processor, code and card, see `push_checkpoint`.

        Args:
            commit_message: of the commit.
            blocking: wait until it is done.
            token, revision, private: default: `hub_token`, `hub_revision` and `hub_private_repo` of the arguments.
            with_images: also push the evaluation images that the card describes; only if you may publish them.

        Returns:
            What the Hub says of the commit, a `Future` of it, or None in other processes than the first.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        push = self._push if blocking else self._push_later
        return push(str(self.args.output_dir), str(commit_message), token, revision, with_images)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        is_busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if is_busy and not self.args.hub_always_push:
            return
        message = f"Training in progress, step {self.state.global_step}"
        self.push_in_progress = PushInProgress([self._push_later(checkpoint_folder, message)])

    def _push_later(
        self,
        directory: str,
        message: str,
        token: str | None = None,
        revision: str | None = None,
        with_images: bool = False,
    ) -> Any:
        """Push a copy in the background: the checkpoint itself may be deleted meanwhile."""
        copied = tempfile.mkdtemp(prefix="captioner-")
        card = Path(directory, "README.md")
        for path in [*checkpoint_files(directory), *sample_images(directory), *([card] if card.is_file() else [])]:
            _link_or_copy(path, Path(copied, path.name))

        def push() -> CommitInfo:
            try:
                return self._push(copied, message, token, revision, with_images)
            except Exception as error:
                logger.warning(f"A push during training failed, training goes on: {error}")
                raise
            finally:
                shutil.rmtree(copied, ignore_errors=True)

        return HfApi().run_as_future(push)

    def _push(
        self, directory: str, message: str, token: str | None, revision: str | None, with_images: bool
    ) -> CommitInfo:
        return push_checkpoint(
            directory,
            str(self.hub_model_id),
            revision=revision or self.args.hub_revision,
            message=message,
            token=token or self.args.hub_token,
            with_images=with_images,
        )


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
