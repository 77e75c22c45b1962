"""The manifest of a snapshot refuses what could reach beyond its folder."""

import pytest

from headrace.pserver.snapshots.manifest import BadManifest, BucketFile, Manifest, decode, encode


def _manifest(file: str) -> Manifest:
    bucket = BucketFile(0, 1, "00", {}, 0, 0, 0, 0, 0, file, 0, "", "")
    return Manifest("name", "news", "", "", 1, 1, 1, 0, 0, "0.1.0", [bucket])


@pytest.mark.parametrize("file", ["../other/rows.parquet", "/etc/passwd", "a/b", "..", "", "a\\b"])
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(file: str) -> None:
    with pytest.raises(BadManifest, match="files in its own folder"):
        decode(encode(_manifest(file)))


def test_a_manifest_of_files_in_its_folder_is_read() -> None:
    assert decode(encode(_manifest("rows-00000.parquet"))).files[0].file == "rows-00000.parquet"
