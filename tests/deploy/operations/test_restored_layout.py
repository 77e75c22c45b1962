"""The number of sub-hashes of a restored bucket: `headrace pserver restore --buckets`."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.deploy.cli.pserver.pserver_restore import sub_hashes_of


@pytest.mark.parametrize(
    ("had", "before", "buckets", "expected"),
    [
        (256, 64, None, 256),
        (256, 64, 64, 256),
        (8, 8, 8, 8),
        (256, 64, 8, 2048),  # fewer buckets: as many rows in each sub-hash as before
        (1024, 64, 32, 2048),
        (1024, 64, 8, 4096),  # the most
        (256, 64, 128, 256),
        (8, 8, 32, 8),
        (4096, 1, 64, 256),  # more buckets: not more than their number wants
        (256, 64, 12, 1024),  # refused afterwards, but not for this
    ],
)
def test_a_restore_keeps_sub_hashes_unless_the_bucket_count_changes(
    had: int, before: int, buckets: int | None, expected: int
) -> None:
    manifest: Any = SimpleNamespace(sub_hashes=had, shape=SimpleNamespace(buckets=before))
    settings: Any = SimpleNamespace(buckets=buckets)
    assert sub_hashes_of(manifest, settings) == expected
