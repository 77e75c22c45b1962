"""The shape of a model: a bucket is the high bits of an id, so buckets are a power of two."""

import pytest

from headrace.pserver.store import Shape


@pytest.mark.parametrize("buckets", [0, -1, 3, 12, 1 << 17])
def test_a_shape_refuses_buckets_that_ids_cannot_address(buckets: int) -> None:
    with pytest.raises(ValueError, match=f"'m': expected a power of two up to 65536.*{buckets}"):
        Shape("m", buckets, 2, "fingerprint", "spec")


@pytest.mark.parametrize("buckets", [1, 2, 16, 1 << 16])
def test_a_shape_takes_every_power_of_two_up_to_its_limit(buckets: int) -> None:
    assert Shape("m", buckets, 2, "fingerprint", "spec").buckets == buckets
