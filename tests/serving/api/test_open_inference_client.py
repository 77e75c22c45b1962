"""The Open Inference Protocol with the client that its working group generates from the spec.

The client checks every response against the protocol's own types. It sends JSON only; for the
binary extension see tritonclient in test_inference.py. It has no integers: a time of 1760000000000
arrives as 1760000000000.0.
"""

import httpx
import pytest
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.core.api_error import ApiError
from open_inference.openapi.errors import BadRequestError, NotFoundError
from open_inference.openapi.types import (
    InferenceRequest,
    RequestInput,
    RequestOutput,
)

from tests.serving.served_models import (
    NOW_MS,
    Pusher,
    deltas_of_article,
    eventually,
    memory_store,
    news,
)
from tests.serving.server_in_thread import ready, running


def tensor(name: str, datatype: str, data: list[object]) -> RequestInput:
    said = {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}
    return RequestInput.parse_obj(said)


def request(**more: object) -> InferenceRequest:
    inputs = [
        tensor("article_id", "BYTES", ["hot", "cold"]),
        tensor("price", "FP64", [2.5, 3.0]),
        tensor("timestamp_ms", "INT64", [NOW_MS]),
    ]
    return InferenceRequest.parse_obj({"inputs": inputs, **more})


def test_the_client_of_the_inference_protocols_working_group_gets_scores() -> None:
    spec, store = news(), memory_store(news())
    Pusher(store).push(deltas_of_article(spec, "hot", -3.0))
    with running(store) as server, httpx.Client(timeout=60) as http:
        eventually(lambda: ready(server.url))
        client = OpenInferenceClient(base_url=server.url, httpx_client=http)
        client.check_server_liveness()
        client.check_server_readiness()
        client.check_model_readiness("news")
        client.check_model_version_readiness("news", spec.fingerprint)
        assert client.read_server_metadata().name == "headrace"
        described = client.read_model_metadata("news")
        assert described.versions == [spec.fingerprint]
        assert {"article_id", "price"} <= {each.name for each in described.inputs or ()}
        assert [each.name for each in described.outputs or ()] == ["score", "impression_id"]

        outputs = [RequestOutput.parse_obj({"name": "score"})]
        answer = client.model_infer("news", request=request(id="r", outputs=outputs))
        assert (answer.id, answer.model_name, answer.model_version) == (
            *("r", "news"),
            spec.fingerprint,
        )
        [scores] = answer.outputs
        assert (scores.name, scores.datatype, scores.shape) == ("score", "FP64", [2])
        hot, cold = scores.data.__root__
        assert isinstance(hot, float) and isinstance(cold, float) and hot > cold
        again = client.model_version_infer("news", spec.fingerprint, request=request())
        assert again.outputs[0].data == scores.data

        wrong = request(inputs=[tensor("article_id", "FP16", ["x"])])
        with pytest.raises(BadRequestError, match="a number"):
            client.model_infer("news", request=wrong)
        with pytest.raises(NotFoundError):
            client.check_model_readiness("old")
        with pytest.raises(ApiError) as refused:
            client.model_infer("news", request=request(parameters={"min_version": 1_000_000}))
        assert refused.value.status_code == 412
