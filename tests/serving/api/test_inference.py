"""The Open Inference Protocol: its routes, both its encodings, and Triton's client."""

import json
import struct
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton  # type: ignore[import-untyped]

from headrace.serving.requests.tensors import Tensor, candidates_of
from tests.serving.api.app_client import PREDICT, ask, complete
from tests.serving.served_models import (
    NOW_MS,
    Serving,
    deltas_of_article,
    eventually,
    memory_store,
    news,
)
from tests.serving.server_in_thread import ready, running

INFER = "/v2/models/news/infer"
HEADER = "Inference-Header-Content-Length"


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> Any:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


def learned() -> Serving:
    serving, pusher = complete()
    for article, z in (("1", -3.0), ("2", 2.0), ("3", -0.5)):
        pusher.push(deltas_of_article(serving.spec, article, z))
    serving.follow()
    return serving


def test_tensors_and_json_objects_of_equal_content_have_the_same_scores() -> None:
    serving = learned()
    rows = [
        {"article_id": article, "price": price, "topics": topics, "timestamp_ms": NOW_MS}
        for article, price, topics in (("1", 2.5, ["a", "b"]), ("2", 3.0, ["c", "a"]))
    ]
    context = {"user_id": "u", "slate_size": 3}
    told = ask(serving, "POST", PREDICT, json={"context": context, "candidates": rows}).json()
    inputs = [
        tensor("article_id", "BYTES", ["1", "2"]),
        tensor("price", "FP32", [2.5, 3.0], [2, 1]),
        tensor("topics", "BYTES", [["a", "b"], ["c", "a"]], [2, 2]),
        tensor("user_id", "BYTES", ["u"]),
        tensor("slate_size", "INT32", [3]),
        tensor("timestamp_ms", "INT64", [NOW_MS]),
    ]
    answer = ask(serving, "POST", INFER, json={"id": "r", "inputs": inputs})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["id"], said["model_name"]) == ("r", "news")
    assert said["model_version"] == serving.spec.fingerprint
    assert said["parameters"]["version"] == told["version"]
    assert said["parameters"]["age_ms_oldest"] == told["age_ms"]["oldest"]
    score, names = said["outputs"]
    assert (score["name"], score["datatype"], score["shape"]) == ("score", "FP64", [2])
    assert score["data"] == [each["score"] for each in told["predictions"]]
    assert names["name"] == "impression_id" and len(set(names["data"])) == 2


def test_strings_and_numbers_of_any_width_with_equal_text_have_the_same_score() -> None:
    serving = learned()
    scores = []
    for datatype, data in (
        ("BYTES", ["1", "2"]),
        ("INT64", [1, 2]),
        ("UINT8", [1, 2]),
        ("UINT64", [1, 2]),
        ("FP32", [1.0, 2.0]),
    ):
        inputs = [tensor("article_id", datatype, data), tensor("timestamp_ms", "INT64", [NOW_MS])]
        said = ask(serving, "POST", INFER, json={"inputs": inputs}).json()
        scores.append(said["outputs"][0]["data"])
    assert all(each == scores[0] for each in scores)
    assert scores[0][0] > scores[0][1]


def test_binary_tensors_have_the_same_scores_as_json_tensors() -> None:
    serving = learned()
    texts = b"".join(struct.pack("<I", len(each)) + each for each in (b"1", b"22"))
    prices = np.array([2.5, 3.0], "<f4").tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "article_id",
                    "datatype": "BYTES",
                    "shape": [2],
                    "parameters": {"binary_data_size": len(texts)},
                },
                {
                    "name": "price",
                    "datatype": "FP32",
                    "shape": [2],
                    "parameters": {"binary_data_size": len(prices)},
                },
                tensor("timestamp_ms", "INT64", [NOW_MS]),
            ],
            "outputs": [
                {"name": "score", "parameters": {"binary_data": True}},
                {"name": "impression_id"},
            ],
        }
    ).encode()
    binary = ask(
        serving, "POST", INFER, content=head + texts + prices, headers={HEADER: str(len(head))}
    )
    assert binary.status_code == 200, binary.text
    length = int(binary.headers[HEADER])
    said = json.loads(binary.content[:length])
    assert said["outputs"][0]["parameters"] == {"binary_data_size": 16}
    found = np.frombuffer(binary.content[length:], "<f8").tolist()
    inputs = [
        tensor("article_id", "BYTES", ["1", "22"]),
        tensor("price", "FP32", [2.5, 3.0]),
        tensor("timestamp_ms", "INT64", [NOW_MS]),
    ]
    plain = ask(serving, "POST", INFER, json={"inputs": inputs}).json()
    assert plain["outputs"][0]["data"] == found


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "inputs"),
        ({"inputs": []}, "inputs: expected tensors of 1 to 5000 candidates, got 0"),
        ({"inputs": [tensor("colour", "BYTES", ["x"])]}, "inputs[0].name: expected one of"),
        ({"inputs": [tensor("price", "FP8", [1.0])]}, "inputs[0].datatype: expected one of BOOL"),
        ({"inputs": [tensor("price", "FP32", [1.0], [2])]}, "inputs[0].data: expected 2 values"),
        ({"inputs": [tensor("price", "FP32", [1.0], [-1])]}, "inputs[0].shape"),
        ({"inputs": [tensor("price", "FP32", ["x"])]}, "inputs[0].data[0]: expected a number"),
        ({"inputs": [tensor("price", "BYTES", ["x"])]}, "inputs[0].data[0]: expected a number"),
        ({"inputs": [tensor("price", "INT8", [300])]}, "inputs[0].data: expected values within"),
        ({"inputs": [tensor("price", "FP32", [1.0], [1, 1, 1])]}, "inputs[0].shape"),
        (
            {"inputs": [tensor("user_id", "BYTES", ["u"], [2**63 - 1] * 10_000)]},
            "inputs[0].shape: expected 1 to 8 sizes, got 10000",
        ),
        ({"inputs": [tensor("impression_id", "INT64", [1])]}, "inputs[0].datatype"),
        ({"inputs": [tensor("timestamp_ms", "INT64", [17])]}, "inputs[0].data"),
        (
            {"inputs": [tensor("price", "FP32", [1.0] * 2), tensor("user_id", "BYTES", ["u"] * 3)]},
            "inputs[0].shape: expected 3 items",
        ),
        (
            {"inputs": [tensor("price", "FP32", [1.0])], "outputs": [{"name": "rank"}]},
            "outputs[0].name: expected one of score, impression_id, got rank",
        ),
        (
            {"inputs": [tensor("price", "FP32", [1.0])], "parameters": {"max_age_ms": "old"}},
            "parameters.max_age_ms",
        ),
    ],
)
def test_an_invalid_inference_request_gets_400_naming_the_field(asked: Any, said: str) -> None:
    serving, _ = complete()
    answer = ask(serving, "POST", INFER, json=asked)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert set(answer.json()) == {"error"}


def test_binary_tensors_of_the_wrong_length_get_400() -> None:
    serving, _ = complete()
    one = {"name": "article_id", "datatype": "BYTES", "shape": [2]}
    for size, raw, header in (
        (9, b"\1\0\0\0a", None),  # more than the body has
        (5, b"\1\0\0\0a", None),  # one string of two
        (9, b"\1\0\0\0a\xff\0\0\0", None),  # a length beyond the end
        (5, b"\1\0\0\0ab", None),  # bytes left over
        (10, b"\1\0\0\0\xff\1\0\0\0b", None),  # not UTF-8
        (10, b"\1\0\0\0a\1\0\0\0b", "9999"),
        (10, b"\1\0\0\0a\1\0\0\0b", "-1"),
    ):
        head = json.dumps({"inputs": [{**one, "parameters": {"binary_data_size": size}}]}).encode()
        length = header or str(len(head))
        answer = ask(serving, "POST", INFER, content=head + raw, headers={HEADER: length})
        assert answer.status_code == 400, (size, raw)
        assert "expected" in answer.json()["error"]


def test_the_six_routes_of_the_inference_protocol_answer_with_and_without_a_version() -> None:
    serving, _ = complete()
    version = serving.spec.fingerprint
    assert ask(serving, "GET", "/v2").json()["extensions"] == ["binary_tensor_data"]
    assert ask(serving, "GET", "/v2/health/live").json() == {"live": True}
    assert ask(serving, "GET", "/v2/health/ready").json() == {"ready": True}
    for model in ("/v2/models/news", f"/v2/models/news/versions/{version}"):
        said = ask(serving, "GET", model).json()
        assert said["versions"] == [version]
        names = {each["name"] for each in said["inputs"]}
        assert names == {
            *("article_id", "user_id", "slate_size", "topics", "price"),
            *("impression_id", "timestamp_ms"),
        }
        assert ask(serving, "GET", f"{model}/ready").json() == {"name": "news", "ready": True}
        inputs = [tensor("article_id", "BYTES", ["1"])]
        assert ask(serving, "POST", f"{model}/infer", json={"inputs": inputs}).status_code == 200
    for path in ("/v2/models/news/versions/7", "/v2/models/old", "/v2/models/old/ready"):
        answer = ask(serving, "GET", path)
        assert answer.status_code == 404
        assert "expected" in answer.json()["error"]
    assert ask(serving, "GET", "/v2/nothing").json()["error"]


def test_candidates_in_tensors_become_events_of_the_prediction_log() -> None:
    tensors = [
        Tensor("article_id", (2,), ["a", "b"]),
        Tensor("topics", (1, 2), ["x", "y"]),
        Tensor("slate_size", (1,), np.array([3])),
    ]
    candidates = candidates_of(news().fields, tensors, 10)
    assert list(candidates.events(NOW_MS)) == [
        {"timestamp_ms": NOW_MS, "article_id": each, "topics": ["x", "y"], "slate_size": 3}
        for each in ("a", "b")
    ]


def test_the_triton_client_gets_scores_of_binary_tensors() -> None:
    """For JSON see the client of the working group."""
    with running(memory_store(news())) as server:
        eventually(lambda: ready(server.url))
        client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("news")
        [version] = client.get_model_metadata("news")["versions"]
        assert client.is_model_ready("news", version)
        assert client.get_server_metadata()["name"] == "headrace"
        articles = triton.InferInput("article_id", [3], "BYTES")
        articles.set_data_from_numpy(np.array([b"1", b"2", b"3"], np.object_))
        price = triton.InferInput("price", [3, 1], "FP32")
        price.set_data_from_numpy(np.array([[1], [2], [3]], np.float32))
        outputs = [triton.InferRequestedOutput(name) for name in ("score", "impression_id")]
        result = client.infer("news", [articles, price], version, outputs, request_id="r7")
        assert result.get_response()["id"] == "r7"
        scores = result.as_numpy("score")
        assert scores.shape == (3,) and ((scores > 0) & (scores < 1)).all()
        assert len(set(result.as_numpy("impression_id").tolist())) == 3
        unknown = triton.InferInput("colour", [1], "BYTES")
        unknown.set_data_from_numpy(np.array([b"red"], np.object_))
        with pytest.raises(triton.InferenceServerException, match="expected one of"):
            client.infer("news", [unknown])
        client.close()
