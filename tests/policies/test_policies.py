"""Policies against values computed by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from energon_grain import ConfigError
from energon_grain.policies import ADO, DoReMi, MixturePolicy
from energon_grain.policies.ado import fit


def test_doremi_by_hand() -> None:
    policy = DoReMi({"a": 1.0, "b": 2.0}, step_size=1.0, smoothing=0.1)
    # Excess 0.5 and 0 (2.0 is below the reference): e^0.5 to 1, 90 % of it and 5 % for each.
    first = policy.update(1, {"a": 1.5, "b": 1.9})
    grown = math.exp(0.5)
    assert first["a"] == pytest.approx(0.9 * grown / (grown + 1) + 0.05)
    assert first["a"] == pytest.approx(0.610213, abs=1e-6)
    second = policy.update(2, {"b": 2.3})  # a has no loss: excess 0 and 0.3
    a, b = first["a"], first["b"] * math.exp(0.3)
    assert second == pytest.approx({"a": 0.9 * a / (a + b) + 0.05, "b": 0.9 * b / (a + b) + 0.05})
    assert policy.average == pytest.approx({name: (first[name] + second[name]) / 2 for name in "ab"})


def test_doremi_takes_first_weights_and_large_losses() -> None:
    policy = DoReMi({"a": 0.0, "b": 0.0}, weights={"b": 3, "a": 1})
    assert policy.average == {"a": 0.25, "b": 0.75}
    assert policy.update(1, {"a": 5000.0, "b": 0.0}) == pytest.approx({"a": 0.9995, "b": 0.0005})


@pytest.mark.parametrize(("e", "b", "alpha"), [(1.5, 4.0, 0.3), (0.0, 2.0, 0.5), (2.0, 0.0, 0.05)])
def test_a_power_law_is_found(e: float, b: float, alpha: float) -> None:
    steps = np.arange(1.0, 40.0)
    found = fit(steps, e + b * steps**-alpha)
    assert found == pytest.approx((e, b, alpha), abs=1e-6)


def test_a_rising_loss_has_no_slope() -> None:
    assert fit(np.arange(1.0, 20.0), np.arange(1.0, 20.0))[1] == 0


def test_ado_by_hand() -> None:
    laws = {"a": (1.0, 3.0, 0.5), "b": (2.0, 1.0, 0.2)}
    policy = ADO({"a": 1, "b": 3}, warmup=5, blend=0.1, memory=0.9, least=0.01)
    weights: dict[str, float] = {}
    for step in range(1, 6):
        weights = policy.update(step, {name: e + b * step**-alpha for name, (e, b, alpha) in laws.items()})
        if step < 5:
            assert weights == {"a": 0.25, "b": 0.75}
    # alpha * (loss - e) / n at n = 5, times prior times the root of the moving average, which is still the prior.
    a = 0.25 * 0.25**0.5 * 0.5 * 3 * 5**-0.5 / 5
    b = 0.75 * 0.75**0.5 * 0.2 * 1 * 5**-0.2 / 5
    rho = a / (a + b)
    assert weights["a"] == pytest.approx(0.1 * rho + 0.9 * 0.25, rel=1e-5)
    # The mean moves by 1/6 towards rho, the moving average by a tenth towards the last weights.
    mean, moving = 0.25 + (rho - 0.25) / 6, 0.9 * 0.25 + 0.1 * weights["a"]
    a = 0.25 * moving**0.5 * 0.5 * 3 * 6**-0.5 / 6
    b = 0.75 * (1 - moving) ** 0.5 * 0.2 * 1 * 6**-0.2 / 6
    weights = policy.update(6, {"a": 1 + 3 * 6**-0.5, "b": 2 + 6**-0.2})
    assert weights["a"] == pytest.approx(0.1 * a / (a + b) + 0.9 * mean, rel=1e-5)


def test_ado_keeps_a_least_weight_and_fills_gaps() -> None:
    policy = ADO({"a": 1, "b": 1, "c": 98}, warmup=3, blend=1.0, least=0.05)
    weights: dict[str, float] = {}
    for step in range(1, 12):
        losses = {"a": 2.0, "c": 1 + 1 / step}
        weights = policy.update(step, losses if step % 2 else {})
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["a"] == pytest.approx(0.05)
    assert weights["b"] == pytest.approx(0.05)


@pytest.mark.parametrize("kind", ["doremi", "ado"])
def test_a_restored_policy_continues(kind: str) -> None:
    def new() -> DoReMi | ADO:
        return DoReMi({"a": 1.0, "b": 2.0}) if kind == "doremi" else ADO({"a": 1, "b": 2})

    policy, rng = new(), np.random.default_rng(0)
    assert isinstance(policy, MixturePolicy)

    def losses(step: int) -> dict[str, float]:
        return {"a": 1 + step**-0.4 + rng.normal(0, 0.01), "b": 2 + 3 * step**-0.2 + rng.normal(0, 0.01)}

    for step in range(1, 300):
        policy.update(step, losses(step))
    text = json.dumps(policy.state())
    assert len(text) < 8192
    other = new()
    other.restore(json.loads(text))
    for step in range(300, 400):
        now = losses(step)
        assert policy.update(step, now) == other.update(step, now)
    assert policy.state() == other.state()


def test_wrong_arguments() -> None:
    for policy in (DoReMi({"a": 1.0}), ADO({"a": 1.0})):
        with pytest.raises(ConfigError, match="loss of 'z': expected losses of a"):
            policy.update(1, {"z": 1.0})
        with pytest.raises(ConfigError, match="loss of 'a' is nan"):
            policy.update(1, {"a": math.nan})
    with pytest.raises(ConfigError, match="above 0"):
        ADO({})
    with pytest.raises(ConfigError, match="above 0"):
        DoReMi({"a": 1.0}, weights={"a": 0})
