"""The loopback Hub answers huggingface_hub, transformers' cache and datasets as the Hub does."""

import os
from pathlib import Path

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    HfFileSystem,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from .loopback_hub import OTHER_TOKEN, READ_TOKEN, TOKEN


@pytest.fixture
def api(loopback_hub, monkeypatch, tmp_path):
    """A client of the loopback Hub, signed in."""
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    return HfApi(token=TOKEN)


def commit(api, files, **options):
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit("tester/thing", operations, commit_message="add", **options)


def test_files_come_back_by_branch_hash_and_pull_request(api, loopback_hub):
    assert api.whoami()["name"] == "tester"
    api.create_repo("thing")
    first = commit(api, {"a.txt": b"one", "folder/b.safetensors": bytes(5000)})
    commit(api, {"a.txt": b"two"})
    review = commit(api, {"a.txt": b"three"}, create_pr=True)
    assert review.pr_revision == "refs/pr/1"
    contents = {
        revision: Path(hf_hub_download("tester/thing", "a.txt", revision=revision)).read_bytes()
        for revision in ("main", first.oid, "refs/pr/1")
    }
    assert contents == {"main": b"two", first.oid: b"one", "refs/pr/1": b"three"}
    folder = snapshot_download("tester/thing")
    assert os.path.getsize(os.path.join(folder, "folder", "b.safetensors")) == 5000
    assert loopback_hub.repository("tester/thing").branches["main"][-1].files["folder/b.safetensors"].is_large
    assert [entry.path for entry in api.list_repo_tree("tester/thing", recursive=True)] == [
        "a.txt",
        "folder",
        "folder/b.safetensors",
    ]
    assert api.model_info("tester/thing").sha == api.list_repo_commits("tester/thing")[0].commit_id


def test_a_download_is_not_repeated(api, loopback_hub):
    api.create_repo("thing")
    commit(api, {"a.txt": b"one"})
    hf_hub_download("tester/thing", "a.txt")
    before = len([request for request in loopback_hub.requests if request[0] == "GET"])
    hf_hub_download("tester/thing", "a.txt")
    assert len([request for request in loopback_hub.requests if request[0] == "GET"]) == before


def test_a_part_of_a_file_is_read(api, loopback_hub):
    api.create_repo("thing")
    commit(api, {"a.txt": b"0123456789"})
    files = HfFileSystem(endpoint=loopback_hub.url, token=TOKEN, skip_instance_cache=True)
    assert files.cat_file("tester/thing/a.txt", start=2, end=5) == b"234"


def test_commits_change_what_differs(api, loopback_hub):
    api.create_repo("thing")
    first = commit(api, {"a.txt": b"one", "b.bin": b"x" * 3000})
    assert commit(api, {"a.txt": b"one", "b.bin": b"x" * 3000}).oid == first.oid
    with pytest.raises(HfHubHTTPError, match="412|refresh"):
        commit(api, {"a.txt": b"two"}, parent_commit="0" * 40)
    api.create_branch("tester/thing", branch="other")
    api.create_commit("tester/thing", [CommitOperationDelete("a.txt")], commit_message="rm", revision="other")
    assert set(loopback_hub.repository("tester/thing").files("other")) == {"b.bin"}
    assert set(loopback_hub.repository("tester/thing").files()) == {"a.txt", "b.bin"}


def test_refusals(api, loopback_hub, tmp_path):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("tester/thing")
    api.create_repo("thing", private=True)
    assert api.create_repo("thing", exist_ok=True).repo_id == "tester/thing"
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("thing")
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("tester/thing", "missing.txt")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("tester/thing", revision="nowhere")
    for token, status in ((OTHER_TOKEN, "403"), (READ_TOKEN, "403")):
        with pytest.raises(HfHubHTTPError, match=status):
            commit(HfApi(token=token), {"a.txt": b"one"})
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token=False).model_info("tester/thing")
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi(token=False).whoami(token="wrong")
    with pytest.raises(ValueError, match="Invalid metadata"):
        commit(api, {"README.md": b"---\ntags: [a\n---\n"})
    assert set(loopback_hub.repository("tester/thing").files()) == set()


DATA_SET = """
import datasets
rows = datasets.Dataset.from_dict({"image_id": ["a", "b"], "captions": [["one"], ["two", "three"]]})
rows.push_to_hub("tester/rows", split="train")
rows.push_to_hub("tester/rows", split="test")
again = datasets.load_dataset("tester/rows")
assert again["train"].to_dict() == rows.to_dict() == again["test"].to_dict()
"""


def test_data_sets_make_the_round_trip(loopback_hub, fork_server, tmp_path):
    environment = os.environ | loopback_hub.environment(tmp_path)
    ran = fork_server.run(["-c", DATA_SET], env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "data/train-00000-of-00001.parquet" in loopback_hub.repository("tester/rows", "dataset").files()
