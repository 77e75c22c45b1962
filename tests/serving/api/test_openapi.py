"""The OpenAPI document is true: valid and invalid requests made from it never cause a 500.

schemathesis generates valid and invalid requests. None may end in an error of the
server, and every response must match the schema.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.serving.api.app_client import complete

EXAMPLES = 60
SEED = 20_261_121


@pytest.mark.long
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_requests_generated_from_the_openapi_document_never_make_the_server_fail(mode: str) -> None:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import response_schema_conformance

    serving, _ = complete()
    page = schemathesis.openapi.from_asgi("/openapi.json", serving.app)
    asked = 0
    for result in page.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        if mode == "negative" and not operation.body:
            continue  # without a body there is no invalid request
        strategy = operation.as_strategy(generation_mode=GenerationMode(mode))

        @seed(SEED)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def check(case: Any) -> None:
            nonlocal asked
            response = case.call()
            case.validate_response(
                response, checks=[not_a_server_error, response_schema_conformance]
            )
            asked += 1

        check()
    assert asked >= 3 * EXAMPLES  # three routes have a body
