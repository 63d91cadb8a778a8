from ipaddress import IPv4Network
from itertools import combinations

import pytest

from tests.e2e.lab.addresses import LABS, AddressPlan

PLANS = [AddressPlan(number) for number in range(LABS)]


def test_a_plan_is_what_it_was() -> None:
    plan = AddressPlan(7)
    assert (str(plan.outside), str(plan.inside)) == ("10.201.7.1", "10.201.7.2")
    assert (str(plan.pods), str(plan.services)) == ("10.202.7.0/24", "10.203.7.0/24")
    assert (str(plan.api_service), str(plan.dns_service)) == ("10.203.7.1", "10.203.7.10")
    assert (plan.link, plan.cgroup) == ("gwlab7", "gpuwarden-lab-7")


def test_labs_share_no_address_and_no_name() -> None:
    for one, other in combinations(PLANS, 2):
        assert other.conflicts([one.link_network, one.pods, one.services]) == []
    assert len({plan.link for plan in PLANS} | {plan.cgroup for plan in PLANS}) == 2 * LABS


def test_link_names_fit_the_kernel() -> None:
    assert max(len(plan.link) for plan in PLANS) < 16


@pytest.mark.parametrize("number", [-1, LABS])
def test_there_is_no_lab_of_that_number(number: int) -> None:
    with pytest.raises(ValueError, match=f"number is {number}, expected 0 to {LABS - 1}"):
        AddressPlan(number)


def test_conflicts_are_the_networks_that_would_be_hidden() -> None:
    near, wide = IPv4Network("10.202.3.128/25"), IPv4Network("10.0.0.0/8")
    far = IPv4Network("192.0.2.0/24")
    assert AddressPlan(3).conflicts([near, far, wide]) == [near, wide]
    assert AddressPlan(4).conflicts([near, far]) == []
