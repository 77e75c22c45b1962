"""An exported file answers as the service does, in a runtime of another project."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from headrace.ingest.features.encoder import Encoded
from headrace.learner.errors import MissingOnnx, NotExportable
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.local.onnx_export import SUPPORTED, export_onnx
from headrace.learner.spec.model_spec import ModelSpec
from tests.learner.inputs.history_reference import HISTORY
from tests.learner.streams import COUNT, PROBABILITY, random_examples, random_spec

CLOSE = 1e-6
LINEAR = ("logistic_regression", "factorization_machine")
ARCHITECTURES = "headrace.learner.models.deep.networks.architectures"
OWN = f'architecture = "module"\nmodule = "{ARCHITECTURES}:DeepFM"\n'
PLATT = '[calibration]\nkind = "platt"\nalpha = 0.01\n'
DECAY = '[optimizer.embeddings]\nname = "adagrad"\ndecay_per_day = 0.3\n'


def learned(spec: ModelSpec, seed: int, count: int = 400) -> tuple[InMemoryModel, Encoded]:
    """Return a model that learned random examples, and features of which half are unknown."""
    model = InMemoryModel(spec)
    model.learn(random_examples(np.random.default_rng(seed), spec, count, closed=True))
    asked = random_examples(np.random.default_rng(seed + 1), spec, 200, closed=True).features
    strange = asked.ids[::2] ^ np.uint64(0xABCDEF << 20)
    asked.ids[::2] = strange
    return model, asked


def arguments(features: Encoded) -> dict[str, npt.NDArray[Any]]:
    """Return features as the graph takes them: items padded with 0."""
    count = len(features)
    bags = (features.bag_offsets.shape[0] - 1) // count
    lengths = np.diff(features.bag_offsets)
    items = np.zeros((count * bags, max(1, int(lengths.max(initial=0)))), np.uint64)
    items[np.arange(items.shape[1]) < lengths[:, None]] = features.bag_ids
    return {
        "ids": features.ids.view(np.int64),
        "numbers": features.numbers,
        "items": items.reshape(count, bags, -1).view(np.int64),
    }


def answers(path: Path, features: Encoded) -> npt.NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: npt.NDArray[np.float32] = session.run(["probability"], arguments(features))[0]
    return found


def lines_of(architecture: str) -> str:
    if architecture == "logistic_regression":
        return f'architecture = "{architecture}"\nbase_rate = 0.2\n'
    vectors = f'architecture = "{architecture}"\ndimensions = 11\ninit_scale = 0.2\nseed = 7\n'
    if architecture in LINEAR:
        return vectors
    vectors += "mini_batch = 16\n"
    if architecture == "field_weighted_fm":
        return vectors
    vectors += "layers = [8, 5]\n"
    if architecture in ("din", "sequence"):
        vectors += 'history = "tags"\ntarget = "user"\n'
    return vectors


def check_export(spec: ModelSpec, path: Path) -> None:
    """Assert that an exported model answers as the service does."""
    model, asked = learned(spec, seed=5)
    done = export_onnx(model, path)
    times = np.full(len(asked), done.as_of_ms, np.int64)
    expected = model.predict(asked, times)
    assert expected.std() > 0.01
    np.testing.assert_allclose(answers(path, asked), expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("growth", ["", COUNT + PLATT, PROBABILITY + DECAY])
@pytest.mark.parametrize("architecture", SUPPORTED)
def test_an_exported_model_answers_as_the_service_does(
    architecture: str, growth: str, tmp_path: Path
) -> None:
    if architecture not in LINEAR:
        pytest.importorskip("torch", reason="deep models are an extra: headrace[deep]")
    if architecture == "logistic_regression":
        growth = growth.replace(DECAY, "")
    dice = np.random.default_rng(3)
    spec = random_spec(dice, "window", False, growth, lines_of(architecture))
    check_export(spec, tmp_path / "model.onnx")


@pytest.mark.parametrize("longest", [1, 2, 50])
@pytest.mark.parametrize("encoder", ["gru", "attention"])
def test_an_exported_encoder_reads_the_latest_items_in_their_order(
    encoder: str, longest: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="deep models are an extra: headrace[deep]")
    lines = lines_of("sequence").replace("init_scale = 0.2", "init_scale = 1.0")
    lines += f'encoder = "{encoder}"\nencoder_layers = 2\nhistory_length = {longest}\n'
    spec = random_spec(np.random.default_rng(3), "window", False, "", lines)
    check_export(spec, tmp_path / "model.onnx")


@pytest.mark.parametrize("architecture", ["din", "sequence"])
def test_an_exported_model_answers_without_a_column_of_items(
    architecture: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="deep models are an extra: headrace[deep]")
    spec = random_spec(np.random.default_rng(3), "window", False, "", lines_of(architecture))
    model, asked = learned(spec, seed=5, count=50)
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    given = arguments(asked)
    columns = 0 * given["items"][:, :, :1], given["items"][:, :, :0]
    padded, bare = (session.run(["probability"], {**given, "items": items})[0] for items in columns)
    np.testing.assert_allclose(padded, bare, atol=CLOSE, rtol=0)


def test_the_file_states_its_opset_and_its_columns(tmp_path: Path) -> None:
    spec = random_spec(np.random.default_rng(1), "window", False)
    model, _ = learned(spec, seed=2, count=10)
    done = export_onnx(model, tmp_path / "model.onnx", "20261122T000000.000Z-test-0000")
    made = onnx.load(tmp_path / "model.onnx")
    assert [(each.domain, each.version) for each in made.opset_import] == [("", done.opset)]
    facts = json.loads({each.key: each.value for each in made.metadata_props}["headrace"])
    assert [each["name"] for each in facts["ids"]] == ["item", "user", "both", "size"]
    assert facts["ids"][2]["of"] == ["user", "item"]
    assert facts["ids"][3]["per_doubling"] == 1.0
    assert facts["numbers"] == [
        {"name": "price", "number": 5, "transform": "number", "source": "price", "log1p": True}
    ]
    assert facts["snapshot"] == "20261122T000000.000Z-test-0000"
    assert facts["format"] == 1 and facts["spec"] == spec.text


@pytest.mark.parametrize(
    ("lines", "growth", "statistics", "named"),
    [
        (OWN, "", False, r"an architecture whose graph .*, got module\. For devices"),
        ("", '[calibration]\nkind = "isotonic"\n', False, "got isotonic"),
        ('loss = "choice"\n', "", False, 'loss = "logistic", .*, got "choice"'),
        ("", "", True, "got item_rate, item_shows"),
        ("", HISTORY, False, "no field of transform history, .*, got recent"),
    ],
)
def test_a_model_that_cannot_be_exported_is_refused_by_name(
    lines: str, growth: str, statistics: bool, named: str, tmp_path: Path
) -> None:
    if lines:
        pytest.importorskip("torch", reason="deep models are an extra: headrace[deep]")
    spec = random_spec(np.random.default_rng(1), "window", statistics, growth, lines)
    with pytest.raises(NotExportable, match=named):
        export_onnx(InMemoryModel(spec), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_an_export_without_onnx_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    spec = random_spec(np.random.default_rng(1), "window", False)
    with pytest.raises(MissingOnnx, match=r"headrace\[export\]"):
        export_onnx(InMemoryModel(spec), tmp_path / "model.onnx")
