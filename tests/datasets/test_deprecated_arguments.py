from __future__ import annotations

import warnings
from typing import Any

import pytest

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    SampleDecoder,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)

VALIDATION: dict[str, Any] = {"batch_size": 2}
TRAINING: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
ALL = [(get_train_dataset, TRAINING), (get_val_dataset, VALIDATION), (get_val_datasets, VALIDATION)]


@pytest.mark.parametrize(("get", "usual"), ALL)
def test_they_end_in_the_decoder(get: Any, usual: dict[str, Any]) -> None:
    encoder = DefaultTaskEncoder()
    with pytest.warns(DeprecationWarning, match="image_decode, av_decode: deprecated; set `decoder") as caught:
        get("s3://nowhere/data", task_encoder=encoder, image_decode="pil", av_decode="pyav", **usual)
    assert encoder.decoder == SampleDecoder(image_decode="pil", av_decode="pyav")
    assert caught[0].filename == __file__
    assert DefaultTaskEncoder.decoder == SampleDecoder(), "other encoders keep the default"
    with pytest.warns(DeprecationWarning, match="image_decode"):
        get("s3://nowhere/data", task_encoder=encoder, image_decode="pil", av_decode="pyav", **usual)  # the same again


def test_programs_without_a_name_are_warned() -> None:
    """As code that `exec` runs with names of its own."""
    names = {"get": get_train_dataset, "usual": TRAINING}
    with pytest.warns(DeprecationWarning, match="auto_decode is deprecated"):
        exec("dataset = get('s3://nowhere/data', auto_decode=False, **usual)", names)


def test_no_decoding() -> None:
    encoder = DefaultTaskEncoder()
    with pytest.warns(DeprecationWarning, match="auto_decode is deprecated"):
        get_train_dataset("s3://nowhere/data", task_encoder=encoder, auto_decode=False, image_decode="pil", **TRAINING)
    assert encoder.decoder is None


def test_a_handler_has_no_effect() -> None:
    encoder = DefaultTaskEncoder()
    with pytest.warns(DeprecationWarning, match="handler is ignored; pass it as WorkerConfig") as caught:
        get_train_dataset("s3://nowhere/data", task_encoder=encoder, handler=print, **TRAINING)
    assert len(caught) == 1
    assert encoder.decoder is DefaultTaskEncoder.decoder


def test_a_decoder_of_its_own_is_not_replaced() -> None:
    class Encoder(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="l8")

    with (
        pytest.warns(DeprecationWarning, match="image_decode"),
        pytest.raises(ConfigError, match=r"Encoder has the decoder .*of its own"),
    ):
        get_train_dataset("s3://nowhere/data", task_encoder=Encoder(), image_decode="pil", **TRAINING)


def test_no_warning_without_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_train_dataset("s3://nowhere/data", **TRAINING)


def test_other_keywords_are_unknown() -> None:
    with pytest.raises(TypeError, match=r"argument 'xyz'\. It takes path, split_part, "):
        get_train_dataset("s3://nowhere/data", xyz=3, **TRAINING)  # type: ignore[call-arg]
