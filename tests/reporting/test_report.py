"""The report as text: what is in it, what is escaped, how large it is, what it refuses."""

import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import arviz as az
import numpy as np
import pytest
import xarray as xr

import samplekit as sk
from samplekit.core.errors import SettingsError, StoreError
from samplekit.diagnostics.diagnose import diagnose
from samplekit.reporting import charts, choose, numbers
from samplekit.reporting.api import report
from samplekit.reporting.plots import WORST
from samplekit.reporting.run_charts import telling_pairs
from samplekit.reporting.svg import Axis
from tests.reporting.runs import QUOTES, SCRIPT, healthy, wicked

ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "link", "input"}
IMPLIED = {"tr", "th", "td"}  # HTML closes these by itself


class Page(HTMLParser):
    """A page read back: every tag with its attributes, every text, ends matched to starts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open[-1] != tag and self.open[-1] in IMPLIED:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def where(self, **wanted):
        named = {k.rstrip("_").replace("_", "-"): v for k, v in wanted.items()}
        return [t for t in self.tags if named.items() <= t[1].items()]


def write(run, tmp_path, **options) -> tuple[str, Page]:
    path = report(run, tmp_path / "page.html", **options)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def test_verdict_comes_first_and_says_what_diagnose_says(tmp_path):
    text, page = write(healthy(), tmp_path)
    assert diagnose(healthy()).ok
    assert "Trust these draws" in page.texts
    assert "Do not trust" not in text
    text, page = write(wicked(), tmp_path)
    found = diagnose(wicked()).findings
    assert "Do not trust these draws yet" in page.texts
    assert text.index('id="verdict"') < text.index('id="findings"') < text.index('id="plots"')
    for finding in found:
        assert page.where(id=f"finding-{finding.code}")
        assert finding.why in page.texts
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_worst_scalars_come_first():
    run = healthy(20)
    run["theta"][:, :, 7] += 3 * np.arange(4)[:, None]
    diagnosis = diagnose(run)
    order = choose.worst_first(diagnosis)
    assert diagnosis.table.index[order[0]] == "theta[7]"
    least = diagnosis.table[["ess_bulk", "ess_tail"]].min(axis=1).to_numpy()[order[1:]]
    assert (np.diff(least) >= 0).all()


def test_blameless_constants_come_last():
    run = healthy(4)
    run["theta"][:, :, 1] = 1.0
    diagnosis = diagnose(run)
    if "theta[1]" not in choose.flags(diagnosis):
        assert diagnosis.table.index[choose.worst_first(diagnosis)[-1]] == "theta[1]"


def test_table_has_every_scalar_and_plots_the_worst(tmp_path):
    text, page = write(healthy(30), tmp_path)
    assert len(page.where(scope="row")) == 30
    assert text.count('class="scalar"') == WORST
    for name in ("Trace", "Ranks", "Marginal", "Growth"):
        assert page.texts.count(name) == WORST
    heads = page.where(scope="col")
    assert len(heads) == 10
    assert text.count('<th scope="col"') == text.count('<th scope="col" data-column=')


def test_names_are_text_wherever_they_stand(tmp_path):
    text, page = write(wicked(), tmp_path)
    assert SCRIPT not in text.replace("&lt;", "")
    assert "<img" not in text
    assert "\x07" not in text
    assert "\u202e" not in text  # would turn the rest of the sentence around
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert [tag for tag, _ in page.tags].count("title") == 1
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert any(SCRIPT in words for words in page.texts)
    assert any(QUOTES in words for words in page.texts)
    labels = [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and "role" in attrs]
    assert any(SCRIPT in label or QUOTES in label or "a[" in label for label in labels)


def test_file_names_are_text(tmp_path):
    folder = tmp_path / "<b>'&amp;"
    folder.mkdir()
    path = folder / '<i>x".nc'
    xr.DataTree.from_dict(
        {"posterior": az.load_arviz_data("centered_eight")["posterior"].to_dataset()}
    ).to_netcdf(path)
    text, page = write(str(path), tmp_path)
    assert "<i>" not in text
    assert "<b>'" not in text
    assert f"run = az.from_netcdf({str(path)!r})" in "".join(page.texts)
    assert any(words.startswith('<i>x".nc · samplekit') for words in page.texts)


def test_nothing_is_fetched(tmp_path):
    text, page = write(wicked(), tmp_path)
    for tag, attrs in page.tags:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#") or (tag, attrs["href"]) == ("link", "data:,")
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#view)|@import|https?://", text)


def test_size_and_time_stay_small(tmp_path):
    text, _ = write(healthy(100), tmp_path)
    assert len(text.encode()) < 600_000  # the bar is 3 MB
    text, _ = write(healthy(1000, draws=200), tmp_path)
    assert len(text.encode()) < 900_000


def test_same_run_same_page(tmp_path):
    assert write(wicked(), tmp_path)[0] == write(wicked(), tmp_path)[0]


def sick(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(4, 200, 3))
    if kind == "one NaN":
        x[1, 7, 0] = np.nan
    elif kind == "NaN everywhere":
        x[:] = np.nan
    elif kind == "infinite chain":
        x[2, :, 1] = np.inf
    elif kind == "huge":
        x *= 1e300
    elif kind == "tiny":
        x = 1.0 + 1e-14 * x
    elif kind == "frozen together":
        x[:] = 2.0
    elif kind == "frozen apart":
        x[:] = np.arange(4)[:, None, None]
    elif kind == "one frozen":
        x[3] = 0.5
    elif kind == "one chain":
        x = x[:1]
    elif kind == "three draws":
        x = x[:, :3]
    elif kind == "one draw":
        x = x[:, :1]
    elif kind == "integers":
        return {"n": rng.poisson(3.0, size=(4, 200)), "flag": rng.uniform(size=(4, 200)) < 0.5}
    elif kind == "heavy":
        return {"x": rng.standard_cauchy(size=(4, 200))}
    elif kind == "many chains":
        x = rng.normal(size=(300, 20, 3))
    elif kind == "matrix":
        return {"m": rng.normal(size=(4, 100, 2, 3))}
    return {"x": x}


KINDS = [
    "one NaN", "NaN everywhere", "infinite chain", "huge", "tiny", "frozen together",
    "frozen apart", "one frozen", "one chain", "three draws", "one draw", "integers", "heavy",
    "many chains", "matrix",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_sick_runs_have_a_page(kind, tmp_path):
    text, page = write(sick(kind), tmp_path)
    paths = [attrs["d"] for tag, attrs in page.tags if tag == "path"]
    assert paths
    # No coordinate may be undefined: browsers drop such a path and say nothing.
    assert not [d for d in paths if re.search("nan|inf", d)]
    assert 'id="continue"' in text


@pytest.mark.parametrize("name", ["centered_eight", "non_centered_eight"])
def test_runs_of_other_libraries(name, tmp_path):
    run = az.load_arviz_data(name)
    text, page = write(run, tmp_path)
    assert any("pymc" in words for words in page.texts)
    assert ('<path d="M' in text.partition("<b>Divergences</b>")[2]) == bool(
        run["sample_stats"]["diverging"].any()
    )
    assert "<b>Energy</b>" in text
    assert "sk.resume" not in "".join(page.texts).replace("sk.resume(run", "")


def test_own_run_says_how_it_was_made_and_goes_on(tmp_path):
    target = sk.targets.banana()
    store = tmp_path / "run.zarr"
    settings = {"draws": 200, "warmup": 200, "seed": 11, "store": store, "progress": False}
    run = sk.sample(target, sk.NUTS(), **settings)
    text, page = write(store, tmp_path, target=target)
    words = "".join(page.texts)
    assert "NUTS(max_treedepth=10)" in words
    assert f"longer = sk.resume({str(store)!r}, target, draws=200)" in words
    pairs = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert pairs["seed"] == "11"
    assert pairs["precision"] == "float32"
    assert "tuned in warm-up" in pairs["step size"]
    step = numbers.short(float(np.median(run["sampler"]["kernel.step_size"])))
    if "slot" not in run["sampler"].attrs:
        assert step in pairs["step size"]
    assert {"compiling", "sampling", "ESS per second"} <= set(pairs)
    assert "Energy" in page.texts
    contours = [a for tag, a in page.tags if tag == "path" and a.get("class") == "contour"]
    assert len(contours) == 5
    assert "Target" in page.texts


def test_target_pictures(tmp_path):
    line = sk.from_score(lambda x: -x - x**3, dim=1)
    run = sk.sample(line, sk.ScoreMALA(), draws=100, warmup=100, progress=False)
    text, page = write(run, tmp_path, target=line)
    assert [a for _, a in page.tags if a.get("class") == "curve target"]
    plane = sk.from_score(lambda x: -x, dim=2)
    run = sk.sample(plane, sk.ScoreMALA(), draws=100, warmup=100, progress=False)
    text, page = write(run, tmp_path, target=plane)
    assert [a for _, a in page.tags if a.get("class") == "arrow"]
    space = sk.targets.gaussian(3)
    run = sk.sample(space, draws=100, warmup=100, progress=False)
    text, page = write(run, tmp_path, target=space)
    assert "No picture of the target" not in text
    assert "Target" not in page.texts


def test_paths_that_cannot_be_written_are_refused_in_words(tmp_path):
    with pytest.raises(SettingsError, match="is a folder"):
        report(healthy(), tmp_path)
    with pytest.raises(StoreError, match="there is no folder"):
        report(healthy(), tmp_path / "missing" / "page.html")
    with pytest.raises(SettingsError, match="is not a path"):
        report(healthy(), 3)
    with pytest.raises(StoreError, match="cannot be written"):
        report(healthy(), tmp_path / ("x" * 300 + ".html"))
    with pytest.raises(StoreError, match="no run at"):
        report(tmp_path / "none.zarr", tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_page_is_replaced_at_once_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StoreError, match="No space left"):
            report(healthy(), path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert report(healthy(), str(path)) == path
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


# Parts ------------------------------------------------------------------------------------


def test_downsampled_traces_keep_every_extreme_and_every_gap():
    rng = np.random.default_rng(0)
    values = rng.normal(size=100_000)
    values[12_345], values[67_890], values[5_000] = 50.0, -60.0, np.nan
    at, kept = charts.extremes(values, 250)
    assert at.size <= 3 * 250
    assert (np.diff(at) > 0).all()
    assert np.nanmax(kept) == 50.0
    assert np.nanmin(kept) == -60.0
    assert np.isnan(kept[at == 5_000]).all()
    assert np.isin(5_000, at)
    np.testing.assert_array_equal(kept[at != 5_000], values[at[at != 5_000]])


def test_chains_that_differ_are_the_ones_shown():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(64, 100))
    draws[17], draws[40], draws[55, 3] = 0.1, draws[40] + 5, np.nan
    shown = charts.most_different(draws)
    assert len(shown) == charts.MOST_CHAINS
    assert {17, 40, 55} <= set(shown.tolist())


def test_divergences_choose_the_axis_that_tells_them():
    rng = np.random.default_rng(2)
    v = 3 * rng.normal(size=2000)
    x = rng.normal(size=(3, 2000)) * np.exp(v / 2)
    others = rng.normal(size=(6, 2000))
    scalars = np.concatenate([others[:3], x[:1], v[None], others[3:], x[1:]])
    pairs = telling_pairs(scalars, v < -4)
    assert {first for first, _ in pairs} == {4}
    assert {other for _, other in pairs} == {3, 8, 9}


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1),
        (-3.2, 4.1),
        (1e6, 1e6 + 1e-2),
        (-1e-9, 3e-9),
        (0, 99_999),
        (-1e300, 1e300),
        (5, 5.001),
    ],
)
def test_ticks_are_few_round_and_inside(low, high):
    values, labels, note = Axis(low, high, 0, 100).ticks(4)
    assert 2 <= len(values) <= 6
    assert all(low - 1e-9 * abs(low) <= v <= high + 1e-9 * abs(high) for v in values)
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 7
    assert len(note) < 24


def test_log_axes_have_powers_of_ten():
    values, labels, _ = Axis(0.02, 500.0, 0, 100, log=True).ticks(4)
    np.testing.assert_allclose(values, [0.1, 1, 10, 100])
    assert labels == ["0.1", "1", "10", "100"]


def test_wheel_holds_style_and_script(tmp_path):
    """The page's files are data of the package: hatchling takes what is not Python as well."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    if "No module named hatchling" in done.stderr:
        pytest.skip("hatchling is not installed: it builds wheels in an environment of its own")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"samplekit/reporting/style.css", "samplekit/reporting/script.js"} <= set(names)
