"""A thousand connections without a token, each kind of attack for a minute."""

import pytest

from tests.bench.serving.hostile import ATTACKS, measure


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.parametrize("name", ATTACKS)
def test_a_server_under_attack_keeps_its_memory_and_answers_its_clients(name: str) -> None:
    figures = measure(name, 60.0)
    assert figures["memory"] < 1.5
    assert figures["failed"] == 0
    assert figures["answered"] > 0
    assert figures["answered_afterwards"] == 20
