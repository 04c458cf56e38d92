from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chappe.hop.retention import Retained, choose


def test_current_and_previous_stay_and_older_ones_go() -> None:
    objects = {"a": 1, "b": 4, "c": 7, "d": None, "e": None}
    gone = choose(objects, keep_objects=["d"], keep_versions=[], held_versions=[], current=7)
    assert gone == Retained((1,), ("a", "e"))


def test_what_lands_late_is_not_the_previous_of_nothing() -> None:
    """Without a current version there is none before it; a version newer than current is kept only when it is named."""
    assert choose({"a": 5}, keep_objects=[], keep_versions=[], held_versions=[], current=None) == Retained((5,), ("a",))
    assert choose({"a": 5, "b": 9}, keep_objects=[], keep_versions=[9], held_versions=[], current=5) == Retained((), ())


@given(
    objects=st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.integers(1, 6)),
    keep_objects=st.sets(st.sampled_from("abcdefgh")),
    keep_versions=st.sets(st.integers(1, 6)),
    held=st.sets(st.integers(1, 6)),
    current=st.none() | st.integers(1, 6),
)
def test_nothing_that_is_wanted_goes_and_nothing_else_stays(
    objects: dict[str, int | None],
    keep_objects: set[str],
    keep_versions: set[int],
    held: set[int],
    current: int | None,
) -> None:
    gone = choose(objects, keep_objects=keep_objects, keep_versions=keep_versions, held_versions=held, current=current)
    versions = {v for v in objects.values() if v is not None}
    older = [v for v in versions if current is not None and v < current]
    for version in versions:
        wanted = (
            version in keep_versions | held
            or version == current
            or bool(older and version == max(older))
            or any(v == version and o in keep_objects for o, v in objects.items())
        )
        assert (version in gone.versions) is not wanted
    for object_id, landed in objects.items():
        if landed is None:
            assert (object_id in gone.objects) is (object_id not in keep_objects)
        else:
            assert (object_id in gone.objects) is (landed in gone.versions)
