"""A snapshot is loaded only if its own spec still means the model that was saved."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.learner.local import in_memory_model
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.errors import WrongModel

SPEC = '[model]\nname = "a"\n[fields.user]\nnumber = 1\ntransform = "id"\n'


def test_a_snapshot_whose_spec_has_another_fingerprint_now_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InMemoryModel(parse_spec(SPEC, "a.toml")).save(tmp_path)
    assert len(InMemoryModel.load(tmp_path)) == 0

    def changed(text: str, path: Path | str) -> ModelSpec:
        return replace(parse_spec(text, path), fingerprint="of another version")

    monkeypatch.setattr(in_memory_model, "parse_spec", changed)
    with pytest.raises(WrongModel):
        InMemoryModel.load(tmp_path)
