"""Checks the internals of uvicorn that `runtime.http.server.SingleWriteProtocol` relies on.

None of them is documented. pyproject.toml pins uvicorn and httptools to a minor version; if one of
these tests fails after an update, read the new `httptools_impl.py` before you move the pin.
"""

import inspect

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.runtime.http.bounded_protocol import BoundedProtocol
from headrace.runtime.http.server import SingleWriteProtocol

OVERRIDDEN = {
    name
    for kind in (BoundedProtocol, SingleWriteProtocol)
    for name in ("data_received", *vars(kind))
    if name.startswith(("on_", "connection_", "data_", "_unset"))
}


@pytest.mark.parametrize("name", sorted(OVERRIDDEN))
def test_uvicorn_still_has_the_method_that_the_single_write_protocol_overrides(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name, None)), (
        f"expected uvicorn's HttpToolsProtocol to have {name}, got none: SingleWriteProtocol "
        "would never be called there"
    )


def test_uvicorn_unsets_the_keep_alive_when_a_request_arrives() -> None:
    source = inspect.getsource(HttpToolsProtocol.data_received)
    assert "self._unset_keepalive_if_required()" in source, (
        "expected data_received to call _unset_keepalive_if_required, got another body: "
        "SingleWriteProtocol would close connections in the middle of a request"
    )


def test_uvicorn_ends_an_answer_with_the_steps_that_the_single_write_protocol_repeats() -> None:
    source = inspect.getsource(HttpToolsProtocol.on_response_complete)
    steps = (
        "self.server_state.total_requests += 1",
        "self.transport.is_closing()",
        "self.flow.resume_reading()",
        "self.timeout_keep_alive, self.timeout_keep_alive_handler",
        "self.pipeline",
    )
    missing = [step for step in steps if step not in source]
    assert not missing, (
        f"expected on_response_complete to do {steps}, got one without {missing}: "
        "SingleWriteProtocol.on_response_complete must follow it"
    )
    assert callable(getattr(FlowControl, "resume_reading", None))
