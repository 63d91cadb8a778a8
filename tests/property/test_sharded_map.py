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
