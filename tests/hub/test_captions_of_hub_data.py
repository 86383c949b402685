"""`caption hf://datasets/OWNER/NAME`: images of the Hub, by names that do not depend on the cache."""

import io
import json
import tarfile

import PIL.Image
import pytest
from huggingface_hub import HfApi

from hf_captioners.cli import main
from hf_captioners.data.containers import hub_folder


@pytest.fixture
def uploaded(hub, tmp_path):
    """A data set with two shards of two images and a file that is not needed."""
    folder = tmp_path / "upload"
    (folder / "data").mkdir(parents=True)
    for shard in range(2):
        with tarfile.open(folder / "data" / f"{shard}.tar", "w") as tar:
            for number in range(2):
                buffer = io.BytesIO()
                PIL.Image.linear_gradient("L").rotate(90 * (2 * shard + number)).convert("RGB").save(buffer, "PNG")
                member = tarfile.TarInfo(f"{number}.png")
                member.size = buffer.tell()
                buffer.seek(0)
                tar.addfile(member, buffer)
    (folder / "weights.bin").write_bytes(b"much")
    HfApi().create_repo("tester/photos", repo_type="dataset")
    HfApi().upload_folder(repo_id="tester/photos", folder_path=folder, repo_type="dataset")
    hub_folder.cache_clear()
    yield
    hub_folder.cache_clear()


def test_a_data_set_of_the_hub(uploaded, captioner, tmp_path):
    output = tmp_path / "captions.jsonl"
    command = ["caption", "--model", str(captioner), "--device", "cpu", "--output", str(output), "--overwrite"]
    assert main([*command, "hf://datasets/tester/photos"]) == 0
    found = [json.loads(line)["image"] for line in output.read_text().splitlines()]
    assert found == [f"hf://datasets/tester/photos/data/{shard}.tar/{n}.png" for shard in range(2) for n in range(2)]
    assert not [path for path in tmp_path.rglob("*") if path.name == "weights.bin" and "upload" not in path.parts]
    assert main([*command, "hf://datasets/tester/photos@main/data/1.tar"]) == 0
    (first, _) = [json.loads(line) for line in output.read_text().splitlines()]
    assert first["image"] == "hf://datasets/tester/photos@main/data/1.tar/0.png"
    (tmp_path / "list.txt").write_text(first["image"] + "\n")
    assert main([*command, str(tmp_path / "list.txt")]) == 0
    assert json.loads(output.read_text())["caption"] == first["caption"]


def test_what_is_missing_is_told(uploaded, captioner, capsys):
    for name, said in (
        ("hf://datasets/tester/none", "none"),
        ("hf://datasets/tester/photos/other", "photos has no images, tar shards or Parquet files other"),
        ("hf://datasets/photos", "expected hf://datasets/OWNER/NAME"),
    ):
        assert main(["caption", name, "--model", str(captioner)]) == 2
        error = capsys.readouterr().err
        assert "hf-captioners caption: error: " in error and said in error.rpartition("error: ")[2], error
