from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fleet.sharded_map import ShardedMap

KEYS = st.text(max_size=3)
ACTIONS = st.lists(st.tuples(KEYS, st.none() | st.integers()), max_size=30)


@settings(max_examples=100)
@given(start=st.dictionaries(KEYS, st.integers(), max_size=10), actions=ACTIONS)
def test_it_behaves_like_a_dict_and_old_copies_stay(
    start: dict[str, int], actions: list[tuple[str, int | None]]
) -> None:
    model, sharded = dict(start), ShardedMap(start)
    for key, value in actions:
        before = dict(sharded)
        if value is None:
            changed = sharded.without(key)
            model.pop(key, None)
        else:
            changed = sharded.put(key, value)
            model[key] = value
        assert dict(sharded) == before
        sharded = changed
        assert sharded == model
        assert len(sharded) == len(model)
        assert sharded.get(key) == model.get(key)
    assert sorted(sharded) == sorted(model)


@settings(max_examples=100)
@given(start=st.dictionaries(KEYS, st.text(), max_size=10), actions=ACTIONS)
def test_it_tells_what_differs_from_what_it_was_changed_from(
    start: dict[str, str], actions: list[tuple[str, int | None]]
) -> None:
    before = ShardedMap[object](dict(start))
    after = before
    for key, value in actions:
        after = after.without(key) if value is None else after.put(key, value)
    changed = {key for key in {*before, *after} if before.get(key) is not after.get(key)}
    assert set(after.differences(before)) == changed
    assert set(before.differences(before)) == set()
