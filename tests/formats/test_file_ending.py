"""What the ending of a path says that it is."""

from __future__ import annotations

from pathlib import Path

from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of


def test_files_by_their_ending(tmp_path: Path) -> None:
    assert is_file_of("missing.yaml", METADATASET_ENDINGS)
    assert is_file_of("s3://bucket/mix.yml", METADATASET_ENDINGS)
    assert is_file_of("lines.jsonl", ".jsonl")
    assert not is_file_of("lines.jsonl", METADATASET_ENDINGS)
    folder = tmp_path / "shards.yaml"
    folder.mkdir()
    assert not is_file_of(str(folder), METADATASET_ENDINGS), "a folder that is called like a file"
