"""Pushing: what arrives, what stays, what is refused, and that nothing arrives in part."""

import json
import os
import re
import shutil
import signal

import pytest
import torch
from huggingface_hub import HfApi
from transformers import AutoModelForImageTextToText

from hf_captioners.cli import main
from hf_captioners.hub.pushing import push_checkpoint

from .captioner_cases import case_of
from .loopback_hub import OTHER_TOKEN, READ_TOKEN, TOKEN
from .loopback_repositories import StoredFile

PUBLIC = {"README.md", "config.json", "generation_config.json", "model.safetensors"} | {
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def titles(hub, name="tester/captioner", branch="main"):
    return [commit.title for commit in hub.repository(name).branches[branch]]


def test_the_command_pushes_exactly_the_checkpoint(hub, captioner, capsys):
    assert main(["push", str(captioner), "captioner", "--private", "--message", "First"]) == 0
    assert capsys.readouterr().out.startswith(f"{hub.url}/tester/captioner/commit/")
    repository = hub.repository("tester/captioner")
    assert repository.private and titles(hub) == ["initial commit", "First"]
    code = {path for path in repository.files() if path.endswith(".py")}
    assert code == {path.name for path in captioner.glob("*.py")} - {"my_script.py"}
    assert repository.files().keys() - code == PUBLIC
    assert repository.files()["model.safetensors"] == (captioner / "model.safetensors").read_bytes()
    card = repository.files()["README.md"].decode()
    assert "# captioner\n" in card and 'pipeline(model="tester/captioner", trust_remote_code=True)' in card


def test_the_second_push_changes_nothing(hub, captioner):
    push_checkpoint(captioner, "captioner")
    push_checkpoint(captioner, "captioner")
    assert titles(hub) == ["initial commit", "Upload captioner"]
    (captioner / "generation_config.json").write_text(json.dumps({"max_new_tokens": 9}))
    before = hub.repository("tester/captioner").files()
    push_checkpoint(captioner, "captioner", message="Settings")
    after = hub.repository("tester/captioner").files()
    assert titles(hub)[-1] == "Settings"
    assert {path for path in after if after[path] != before[path]} == {"generation_config.json", "README.md"}
    uploads = [path for method, path in hub.requests if method == "PUT"]
    assert len(uploads) == 1, "weights that are there are not sent again"


def test_a_card_that_a_person_wrote_survives_three_pushes(hub, captioner):
    push_checkpoint(captioner, "captioner")
    api = HfApi(token=TOKEN)
    card = hub.repository("tester/captioner").files()["README.md"].decode()
    card = card.replace("library_name:", "license: mit\nlibrary_name:") + "\n## From me\n\nTaken in Bern.\n"
    api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id="tester/captioner")
    for tokens in (7, 8, 9):
        (captioner / "generation_config.json").write_text(json.dumps({"max_new_tokens": tokens}))
        push_checkpoint(captioner, "captioner")
        pushed = hub.repository("tester/captioner").files()["README.md"].decode()
        assert "license: mit" in pushed and pushed.endswith("\n## From me\n\nTaken in Bern.\n")
        assert f"`max_new_tokens={tokens}`" in pushed


def test_branches_and_pull_requests(hub, captioner):
    push_checkpoint(captioner, "captioner", revision="better")
    assert titles(hub, branch="better")[-1] == "Upload captioner"
    assert not hub.repository("tester/captioner").files("main")
    commit = push_checkpoint(captioner, "tester/captioner", create_pr=True, token=OTHER_TOKEN)
    assert commit.pr_revision == "refs/pr/1"
    assert "model.safetensors" in hub.repository("tester/captioner").files("refs/pr/1")
    assert not hub.repository("tester/captioner").files("main")


def test_shards_replace_one_file_and_back(hub, saved, captioner):
    push_checkpoint(captioner, "captioner")
    model = AutoModelForImageTextToText.from_pretrained(captioner)
    (captioner / "model.safetensors").unlink()
    model.save_pretrained(captioner, max_shard_size="100KB")
    push_checkpoint(captioner, "captioner")
    shards = {path for path in hub.repository("tester/captioner").files() if "safetensors" in path}
    assert len(shards) >= 3 and "model.safetensors" not in shards and "model.safetensors.index.json" in shards
    again = AutoModelForImageTextToText.from_pretrained("tester/captioner").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in model.state_dict().items())
    shutil.rmtree(captioner)
    shutil.copytree(saved, captioner)
    push_checkpoint(captioner, "captioner")
    assert {path for path in hub.repository("tester/captioner").files() if "safetensors" in path} == {
        "model.safetensors"
    }


def test_a_model_pushes_itself(hub, caplog):
    case = case_of("visualgpt")
    model, processor = case.make_model(), case.make_processor()
    processor.push_to_hub("captioner")
    commit = model.push_to_hub("captioner", commit_message="Mine", tags=["birds"])
    assert titles(hub)[-1] == "Mine" and commit.oid == hub.repository("tester/captioner").at("main").oid
    assert hub.repository("tester/captioner").files().keys() >= PUBLIC
    card = hub.repository("tester/captioner").files()["README.md"].decode()
    assert "More Information Needed" not in card and "- birds\n" in card and "- image-captioning\n" in card
    model.push_to_hub("alone")
    assert "has no processor yet. Push it as well: processor.push_to_hub('alone')" in caplog.text


REFUSED = [
    (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    (lambda folder: (folder / "model.safetensors").unlink(), "only optimizer.pt, training_args.bin"),
    (lambda folder: (folder / "processor_config.json").unlink(), "no processor"),
    (lambda folder: (folder / "layers_vision.py").unlink(), "layers_vision.py"),
    (lambda folder: (folder / "modeling_visualgpt.py").unlink(), "modeling_visualgpt.py is missing"),
    (
        lambda folder: (folder / "README.md").write_text("---\ntags: [a\n---\n"),
        "metadata of the card .*README.md cannot",
    ),
    (lambda folder: (folder / "card_facts.json").write_text('{"steps": 3}'), "not of the form that training writes"),
    (lambda folder: os.truncate(folder / "model.safetensors", 5000), "truncated or corrupt"),
    (lambda folder: move_out(folder / "config.json"), "config.json is not read: it leads to"),
    (lambda folder: move_out(folder / "layers_vision.py"), "layers_vision.py is not read: it leads to"),
    (lambda folder: write_index(folder, "../outside.safetensors"), "names the file '../outside.safetensors'"),
]


def move_out(path):
    """Leave a link to a file outside of the folder, which a push would publish."""
    path.rename(path.parents[1] / f"outside_{path.name}")
    path.symlink_to(f"../outside_{path.name}")


def write_index(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    (folder / "model.safetensors.index.json").write_text(f'{{"metadata": {{}}, "weight_map": {{"x": "{name}"}}}}')


@pytest.mark.parametrize(("damage", "said"), REFUSED, ids=[said[:24] for _, said in REFUSED])
def test_a_damaged_directory_is_refused(hub, captioner, damage, said, capsys):
    damage(captioner)
    assert main(["push", str(captioner), "captioner"]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert all(not repository.files() for repository in hub.repositories.values())


@pytest.mark.parametrize(
    ("token", "name", "said"),
    [
        ("", "tester/captioner", "hf auth login"),
        ("hf_wrong", "tester/captioner", "hf auth login"),
        (READ_TOKEN, "captioner", "may not write to"),
        (TOKEN, "somebody/captioner", "may not write to somebody/captioner"),
    ],
)
def test_no_token_and_no_right(hub, captioner, monkeypatch, token, name, said):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(PermissionError, match=said):
        push_checkpoint(captioner, name)
    assert not hub.repositories


def test_other_types_and_visibility(hub, captioner):
    api = HfApi(token=TOKEN)
    api.create_repo("images", repo_type="dataset")
    with pytest.raises(ValueError, match="tester/images is a dataset repository"):
        push_checkpoint(captioner, "images")
    api.create_repo("open")
    with pytest.raises(ValueError, match="tester/open exists and is public"):
        push_checkpoint(captioner, "open", private=True)
    with pytest.raises(ValueError, match="no repository tester/missing"):
        push_checkpoint(captioner, "missing", create_pr=True)
    assert all(not repository.files() for repository in hub.repositories.values())
    assert ("model", "tester/images") not in hub.repositories


def test_a_broken_card_on_the_hub(hub, captioner):
    api = HfApi(token=TOKEN)
    repository = api.create_repo("captioner").repo_id
    broken = b"---\ntags: [a\n---\nMine\n"
    hub.repository(repository).commit("main", "by hand", {"README.md": StoredFile(broken)})
    with pytest.raises(ValueError, match="card README.md of tester/captioner cannot be read"):
        push_checkpoint(captioner, "captioner")
    assert hub.repository(repository).files() == {"README.md": broken}


def test_a_concurrent_push_is_detected(hub, captioner):
    push_checkpoint(captioner, "captioner")
    (captioner / "generation_config.json").write_text("{}")

    def interfere(method, path):
        if "/preupload/" in path:
            hub.repository("tester/captioner").commit("main", "other", {"README.md": StoredFile(b"Hers")})

    hub.before = interfere
    with pytest.raises(OSError, match="changed during the push; nothing was pushed"):
        push_checkpoint(captioner, "captioner")
    assert hub.repository("tester/captioner").files()["README.md"] == b"Hers"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, to share the import of torch")
@pytest.mark.parametrize("moment", ["/large-files/", "/commit/main"])
def test_a_kill_in_the_middle_leaves_the_repository_as_it_was(hub, captioner, moment):
    push_checkpoint(captioner, "captioner")
    before = hub.repository("tester/captioner").files()
    case_of("visualgpt").make_model(seed=1).save_pretrained(captioner)
    killed = []

    def kill(method, path):
        if moment in path:
            os.kill(pusher, signal.SIGKILL)
            killed.append(path)
            raise ConnectionError("the client is gone")

    ready, start = os.pipe()
    pusher = os.fork()
    if not pusher:
        os.read(ready, 1)  # the Hub knows the process to kill
        try:
            push_checkpoint(captioner, "captioner")
        finally:
            os._exit(0)
    hub.before = kill
    os.write(start, b"1")
    assert os.WTERMSIG(os.waitpid(pusher, 0)[1]) == signal.SIGKILL and len(killed) == 1
    assert hub.repository("tester/captioner").files() == before
    hub.before = None
    push_checkpoint(captioner, "captioner")
    pushed = hub.repository("tester/captioner").files()
    assert pushed["model.safetensors"] == (captioner / "model.safetensors").read_bytes() != before["model.safetensors"]
