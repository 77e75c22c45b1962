"""`headrace export` writes the newest snapshot of a model for a device."""

from pathlib import Path

import onnxruntime

from headrace.learner.local.in_memory_model import InMemoryModel
from tests.deploy.in_process import Commands
from tests.learner.shop import shop_spec


def test_the_newest_snapshot_is_exported(tmp_path: Path, headrace: Commands) -> None:
    spec = shop_spec()
    (tmp_path / "shop.toml").write_text(spec.text)
    name = InMemoryModel(spec).save(tmp_path / "models")
    made = tmp_path / "shop.onnx"
    options = ["--model", str(tmp_path / "shop.toml"), "--from", str(tmp_path / "models")]
    ended = headrace("export", *options, "--to", str(made))
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{made}: 0 rows of {name}, 0.0 MB, opset 18")
    inputs = onnxruntime.InferenceSession(str(made)).get_inputs()
    assert [each.name for each in inputs] == ["ids", "numbers", "items"]


def test_a_missing_snapshot_is_refused(tmp_path: Path, headrace: Commands) -> None:
    (tmp_path / "shop.toml").write_text(shop_spec().text)
    options = ["--model", str(tmp_path / "shop.toml"), "--from", str(tmp_path)]
    ended = headrace("export", *options, "--to", str(tmp_path / "shop.onnx"))
    assert ended.code == 2
    assert "shop" in ended.err
