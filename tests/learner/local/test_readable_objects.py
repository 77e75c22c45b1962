"""The text of public objects, as a notebook or a traceback shows it."""

import headrace


def test_a_client_shows_its_address_and_never_its_token() -> None:
    client = headrace.CollectorClient("http://127.0.0.1:9", "a-long-enough-secret")
    try:
        text = repr(client)
    finally:
        client.close(0)
    assert text == "<CollectorClient http://127.0.0.1:9: 0 events not yet acknowledged>"
    assert "closed" in repr(client)
