"""GPU selectors against devices."""

from dataclasses import replace
from typing import Any

import pytest

from controller.placement.selector import (
    FACTS,
    Device,
    compile_labels,
    holds,
    labels_of,
    model_label,
)
from gpuwarden.policy.selector import KEYS, is_label_name, parse_selector
from gpuwarden.policy.texts import RequirementTextError
from tests.builders.fleet_views import acceptance, gpu, mig_slice


def device(*, part: bool = False, host: dict[str, Any] | None = None, **changes: Any) -> Device:
    view = replace(gpu(0), **changes)
    facts = acceptance(**(host or {})).host
    return Device(view.uuid, facts, view, mig_slice("MIG-1") if part else None, in_use=False)


H100 = device()


def test_a_made_up_driver_is_compared_by_the_version_that_it_claims() -> None:
    shown = device(host={"driver": "570.86.10+evaluation"})
    assert parse_selector("driver>=570.86").matches(shown.fact)
    assert parse_selector("driver=570.86.10").matches(shown.fact)
    assert not parse_selector("driver>570.86.10").matches(shown.fact)


@pytest.mark.parametrize(
    "text",
    [
        "model=nvidia h100 80gb hbm3",
        "model != A100",
        "model in (A100 | NVIDIA H100 80GB HBM3)",
        "architecture=HOPPER",
        "memory>=79Gi",
        "memory<80Gi",
        "memory>=8.5e10",
        "memory=81559Mi",
        "memory in (40Gi|81559Mi)",
        "driver>=570",
        "driver>570.86.9",
        "driver<570.86.10.1",
        "driver=570.86.10.0",
        "driver in (550|570.86.10)",
        "cuda<=12.8",
        "compute>=8.9",
        "compute<10",
        "mig=false",
        "mig != true",
        "cc=off",
        "virt=none",
        "fabric=nvswitch",
        "vbios=96.00.74.00.11",
        "pci=10DE:2330",
        "memory>=40Gi,mig=false,driver>=550",
    ],
)
def test_what_holds_for_an_h100(text: str) -> None:
    assert parse_selector(text).matches(H100.fact)


@pytest.mark.parametrize(
    "text",
    [
        "model=H100",
        "model!=NVIDIA H100 80GB HBM3",
        "memory>=80Gi",
        "memory>81559Mi",
        "driver>=570.100",
        "driver<570",
        "cuda=12",
        "mig=true",
        "mig-profile=1g.10gb",
        "mig-profile!=1g.10gb",
        "memory>=40Gi,mig=true",
    ],
)
def test_what_does_not(text: str) -> None:
    assert not parse_selector(text).matches(H100.fact)


def test_a_fact_that_does_not_exist_satisfies_no_term() -> None:
    bare = device(
        product=None,
        memory_mib=None,
        vbios=None,
        pci=None,
        virt=None,
        fabric_kind=None,
        architecture=None,
        compute_capability=None,
        mig=None,
        host={"driver": None, "cuda": None, "cc": None},
    )
    values = {"memory": "1Gi", "driver": "1", "cuda": "1", "compute": "1"}
    for key in FACTS.keys() - {"mig"}:
        for operator in ("=", "!="):
            assert not parse_selector(f"{key}{operator}{values.get(key, 'x')}").matches(bare.fact)
    assert parse_selector("mig=false").matches(bare.fact)
    assert not parse_selector("memory>=0").matches(bare.fact)


def test_a_version_that_is_not_dotted_numbers_does_not_compare() -> None:
    assert not parse_selector("driver>=1").matches(device(host={"driver": "570.86-beta"}).fact)


def test_a_mig_device_has_its_own_memory_and_its_parents_facts() -> None:
    part = device(part=True)
    assert parse_selector("mig=true,mig-profile=1G.10GB,memory<10Gi").matches(part.fact)
    assert parse_selector("model=NVIDIA H100 80GB HBM3,driver>=570").matches(part.fact)
    assert not parse_selector("memory>=40Gi").matches(part.fact)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "key, operator and value"),
        (",", "key, operator and value"),
        ("memory>=40Gi,", "key, operator and value"),
        ("memory", "key, operator and value"),
        ("memory>=", "characters"),
        ("model=" + "x" * 129, "characters"),
        ("model==x", "characters"),
        ("model=a\nb", "characters"),
        ("serial=1", "a key out of model"),
        ("Model=x", "a key out of model"),
        ("model>=x", "has no order"),
        ("mig<true", "has no order"),
        ("mig=yes", "true or false"),
        ("memory>=lots", "quantity"),
        ("memory>=-1", "whole bytes"),
        ("memory>=1m", "whole bytes"),
        ("memory>=1e999", "quantity"),
        ("driver>=570.x", "dotted number"),
        ("driver>=" + "1." * 10 + "1", "dotted number"),
        ("model in a|b", "in (a|b)"),
        ("model in ()", "characters"),
        ("model in (a|)", "characters"),
        ("model in (" + "|".join("x" * 40) + ")", "choices"),
        (",".join(["mig=false"] * 33), "terms"),
        ("x" * 5000, "characters"),
    ],
)
def test_wrong_selectors_say_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(RequirementTextError) as error:
        parse_selector(text)
    assert expected in str(error.value)


def test_canonical_text_parses_to_the_same() -> None:
    selector = parse_selector(" memory >= 40Gi , model in ( a |b)")
    assert selector.text == "memory>=40Gi,model in (a|b)"
    assert parse_selector(selector.text) == selector


def test_labels() -> None:
    named = compile_labels({"big": "memory>=40Gi", "small": "memory<40Gi"})
    assert labels_of(H100, named) == ("big", "model-nvidia-h100-80gb-hbm3")
    assert holds("big", H100, named)
    assert not holds("small", H100, named)
    assert holds("model-nvidia-h100-80gb-hbm3", H100, named)
    assert not holds("model-a100", H100, named)
    assert labels_of(device(product=None), {}) == ()
    assert not holds("model-", device(product=None), {})


def test_a_policy_label_wins_over_a_models() -> None:
    named = compile_labels({"model-nvidia-h100-80gb-hbm3": "memory<40Gi"})
    assert labels_of(H100, named) == ()
    assert not holds("model-nvidia-h100-80gb-hbm3", H100, named)


def test_model_label_is_plain() -> None:
    assert model_label("  NVIDIA  A100-SXM4 (80 GB)! ") == "model-nvidia-a100-sxm4-80-gb"
    assert is_label_name("model-nvidia-a100-sxm4-80-gb")
    assert not is_label_name("a/b")


def test_every_key_of_the_grammar_has_a_fact() -> None:
    assert tuple(FACTS) == KEYS
