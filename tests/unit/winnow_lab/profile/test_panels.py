"""The picture of a profile, from synthetic points."""

from types import SimpleNamespace

from winnow_lab.profile.picture import Series, draw, panels
from winnow_lab.profile.points import Point, PointResult, Work

GIB = 2**30


def update(way, rollouts, seconds, peak):
    return PointResult(Point(way, rollouts), "measured", (seconds,), Work(tokens=10), held=0, peak=int(peak * GIB))


FOUND = [
    PointResult(Point("sampling", 8), "measured", (1.0,), Work(tokens=1000)),
    PointResult(Point("sampling", 16), "measured", (1.9,), Work(tokens=2000)),
    PointResult(Point("sampling", 32), "out of time"),
    update("whole", 8, 3.0, 1.5),
    PointResult(Point("whole", 16), "out of memory"),
    PointResult(Point("whole", 32), "out of memory"),
    update("accumulated", 8, 4.0, 1.0),
    update("accumulated", 16, 8.0, 1.0),
]
PROFILE = SimpleNamespace(found=FOUND, request=SimpleNamespace(memory_limit=2 * GIB))


def test_panels_contain_measured_points_and_missing_ones():
    sampling, seconds, memory, step = panels(PROFILE)
    assert sampling.curves == (Series("", ((8, 1000.0), (16, 950.0)), 0, {"takes too long": (32,)}),)
    assert sampling.mark == (8, "saturated")  # 5% less
    assert seconds.curves[0] == Series("all at once", ((8, 3.0),), 1, {"does not fit": (16, 32)})
    assert [curve.label for curve in seconds.curves] == ["all at once", "all, accumulated"]  # nothing was selected
    assert memory.curves[0].points == ((8, 1.5),)
    assert (memory.y, memory.level) == ("peak (GiB)", (2.0, "limit"))
    assert step.curves[1].points == ((8, 5.0), (16, 9.9))


def test_the_picture_marks_missing_points_and_is_reproducible(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw(panels(PROFILE), [tmp_path / name], title="$a name$")
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert text.count(">does not fit<") == 2  # in seconds, and in memory
    assert text.count(">takes too long<") == 1
    assert "$a name$" in text
    assert (tmp_path / "two.svg").read_text(encoding="utf-8") == text


def test_a_picture_without_measured_points_is_drawn(tmp_path):
    found = [PointResult(Point("sampling", 8), "out of memory"), PointResult(Point("whole", 8), "failed", why="no")]
    nothing = SimpleNamespace(found=found, request=SimpleNamespace(memory_limit=None))
    draw(panels(nothing), [tmp_path / "empty.png"], title="")
    assert (tmp_path / "empty.png").stat().st_size > 0
