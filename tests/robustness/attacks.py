"""The classes of attacks, in the order of the table."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .attacked_checkpoints import attack_configuration, load_model
from .attacked_containers import attack_container, write_containers
from .attacked_converters import attack_converter, write_released
from .attacked_downloads import attack_download, serve
from .attacked_exports import attack_export, write_export
from .attacked_features import attack_features, write_features
from .attacked_folders import attack_folder_of_a_stranger, prepare_folders
from .attacked_images import attack_image, whole_images
from .attacked_names import attack_edited_data, attack_names, attack_with_two_writers
from .attacked_pickles import attack_pickle, whole_pickles
from .attacked_space import attack_space, prepare_space
from .attacked_tables import attack_table, whole_tables
from .isolated import attempt_in_child
from .killed_jobs import JOBS, Job, kill_and_resume
from .killed_workers import kill_workers_of_ray, kill_workers_of_shards, prepare_ray, prepare_shards
from .outcomes import Outcome


class AttackClass(NamedTuple):
    """A class of attacks.

    Attributes:
        run: runs one of them, with material, a seed and an empty folder.
        share: attacks of this class for each image.
        prepare: computes from the material what all attacks of this class read, once, before processes are forked.
    """

    run: Callable[[Any, str, Path], Outcome]
    share: float
    prepare: Callable[[Any], Any]


def _killed(job: Job) -> Callable[[Any, str, Path], Outcome]:
    return lambda material, seed, folder: kill_and_resume(job, material, random.Random(seed), folder)


ATTACKS: Mapping[str, AttackClass] = {
    "images": AttackClass(partial(attempt_in_child, attack_image), 1.0, whole_images),
    "tables": AttackClass(partial(attempt_in_child, attack_table), 0.7, whole_tables),
    "feature files": AttackClass(partial(attempt_in_child, attack_features), 2.0, write_features),
    "pickles and torch files": AttackClass(partial(attempt_in_child, attack_pickle), 1.7, whole_pickles),
    "pickles inside whole checkpoints": AttackClass(partial(attempt_in_child, attack_converter), 1.0, write_released),
    "Parquet and Arrow files": AttackClass(partial(attempt_in_child, attack_container), 1.0, write_containers),
    "checkpoints, configurations, cards": AttackClass(
        partial(attempt_in_child, attack_configuration), 0.6, load_model
    ),
    "exported captioners": AttackClass(partial(attempt_in_child, attack_export), 0.6, write_export),
    "downloads": AttackClass(partial(attempt_in_child, attack_download), 0.3, serve),
    "links and special files": AttackClass(
        partial(attempt_in_child, attack_folder_of_a_stranger), 2.0, prepare_folders
    ),
    "names of images": AttackClass(partial(attempt_in_child, attack_names), 0.6, prepare_folders),
    "two writers": AttackClass(partial(attempt_in_child, attack_with_two_writers), 0.4, prepare_folders),
    "edited data": AttackClass(partial(attempt_in_child, attack_edited_data), 0.6, prepare_folders),
    "uploads to the page of a Space": AttackClass(partial(attempt_in_child, attack_space), 0.6, prepare_space),
    "killed workers: caption --shard": AttackClass(kill_workers_of_shards, 0.012, prepare_shards),
    "killed workers: caption --engine ray": AttackClass(kill_workers_of_ray, 0.012, prepare_ray),
    **{f"kills: {name}": AttackClass(_killed(job), 0.12 / job.kills, job.prepare) for name, job in JOBS.items()},
}
# Classes that take minutes or need packages of their own; they are run by themselves.
APART = [
    *("uploads to the page of a Space", "killed workers: caption --shard", "killed workers: caption --engine ray"),
    *(f"kills: {name}" for name, job in JOBS.items() if job.kills >= 10),
]
