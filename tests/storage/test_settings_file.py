"""What is wrong with a file of storage settings, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from energon_grain.errors import ConfigError
from energon_grain.storage.settings_file import parse_settings, read_settings


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"attemps": 3}, r"\$.attemps: there is no such key. Did you mean `attempts`\?"),
        ({"store": {}}, r"\$.store: there is no such key. Did you mean `stores`\?"),
        ({"xyzzy": 3}, r"\$.xyzzy: there is no such key. Known here: stores, requests_in_flight"),
        ({"stores": {"s3://b": {"regoin": "x"}}}, r"\$.stores\['s3://b'\].regoin: .* Did you mean `region`\?"),
        ({"stores": {"s3://b": {"zzz": "x"}}}, r"\$.stores\['s3://b'\].zzz: .* Known here: endpoint, region"),
        ({"stores": {"s3://b": {"secret_access_key": "x"}}}, r"secret_access_key: .*Credentials never stand here"),
        ({"stores": {"s3://b": {"region": 3}}}, r"\$.stores\['s3://b'\].region: Expected `str | null`, got `int`$"),
        ({"stores": {"s3://b": None}}, r"\$.stores\['s3://b'\]: must be a mapping, such as"),
        ({"stores": {"s3://b": {"endpoint": "localhost:1"}}}, r"\['s3://b'\]: endpoint .* write http://localhost:1"),
        ({"stores": {"data://v": {"location": "nowhere"}}}, r"\['data://v'\]: location 'nowhere': must be a URL"),
        ({"stores": {"team": {}}}, r"\$.stores\['team'\]: is the beginning of no URL; write 's3://team'"),
        ({"stores": ["s3://b"]}, r"\$.stores: must be a mapping"),
        ({"attempts": "three"}, r"\$.attempts: Expected `int`, got `str`$"),
        ({"attempts": 0}, r"\$: attempts=0: must be 1 or more"),
        ({"requests_in_flight": 0}, "requests_in_flight=0: must be 1 or more"),
        ({"request_bytes": 100}, "request_bytes=100: must be 65536 or more"),
        ({"timeout_s": 0}, "timeout_s=0.* must be positive"),
        ({"first_pause_s": 2, "longest_pause_s": 1}, "first_pause_s=2.* between 0 and longest_pause_s=1"),
        ({"first_pause_s": -1}, "between 0 and"),
        ({"cache_bytes": -1}, "cache_bytes=-1: must be 0"),
        ("a: [", "not valid YAML"),
        ("just text", r"must hold a mapping, such as `stores: \{'s3://bucket'"),
        ("", "must hold a mapping"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(tmp_path: Path, content: Any, said: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=rf"^{file}: .*{said}") as failure:
        read_settings(str(file))
    assert "storage settings" not in str(failure.value)


def test_a_mapping_is_checked_without_a_file() -> None:
    assert parse_settings({"attempts": 2}).attempts == 2
    with pytest.raises(ConfigError, match=r"^storage settings: \$\.x: there is no such key"):
        parse_settings({"x": 2})
