"""The report in a real browser: Debian's chromium, headless, driven by selenium.

Skipped where there is no chromium, unless SAMPLEKIT_BROWSER=required.
"""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from samplekit.reporting.api import report
from tests.reporting.runs import QUOTES, SCRIPT, healthy, wicked

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PHONE, DESK = 360, 1280


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    required = os.environ.get("SAMPLEKIT_BROWSER") == "required"
    if not (CHROMIUM and DRIVER):
        if required:
            pytest.fail("SAMPLEKIT_BROWSER=required, but chromium or chromedriver is missing")
        pytest.skip("no chromium and chromedriver here (Debian: apt install chromium-driver)")
    if not required:
        pytest.importorskip("selenium", reason="selenium, of the extra dev, is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(8)
    many = healthy(250, draws=100)
    many["mu"] = rng.normal(size=(4, 100)) + 3.0 * np.arange(4)[:, None]
    runs = {"healthy": healthy(12), "wicked": wicked(), "many": many}
    return {name: report(run, folder / f"{name}.html") for name, run in runs.items()}


@pytest.fixture
def visit(browser, pages):
    """Open a page as a reader with these settings would; check afterwards that nothing failed."""

    def go(name, width=DESK, scheme="light", media=""):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        browser.get(pages[name].as_uri())
        return browser

    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    yield go
    assert browser.get_log("browser") == []


def column(browser, index: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll('#scalars tbody tr')].map(r => r.cells[%d].innerText)"
    )
    return browser.execute_script(script % index)


def names(browser) -> list[str]:
    script = "return [...document.querySelectorAll('#scalars tbody .name')].map(e => e.textContent)"
    return browser.execute_script(script)


def as_numbers(cells: list[str]) -> list[float]:
    return [float(c.replace("−", "-").replace("∞", "inf")) for c in cells]


def click(browser, selector: str) -> None:
    browser.find_element("css selector", selector).click()


def background(browser) -> tuple[int, ...]:
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return rgb(color)


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", color))


def test_nothing_is_requested_but_the_page(visit, pages):
    browser = visit("wicked")
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    asked = [url for url in asked if not url.startswith("data:")]
    assert asked == [pages["wicked"].as_uri()]


def test_scripts_in_names_are_text(visit):
    from selenium.common.exceptions import NoAlertPresentException

    browser = visit("wicked")
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert
    assert any(SCRIPT in name for name in names(browser))
    assert any(QUOTES in name for name in names(browser))
    counts = browser.execute_script(
        "return ['script', 'img', 'i:not([aria-hidden])'].map("
        "s => document.body.querySelectorAll(s).length)"
    )
    assert counts == [1, 0, 0]


def test_table_sorts_both_ways(visit):
    browser = visit("many")
    head = "th[data-column=mean]"
    click(browser, f"{head} button")
    values = as_numbers(column(browser, 1))
    assert values == sorted(values)
    assert len(values) == 100
    element = browser.find_element("css selector", head)
    assert element.get_attribute("aria-sort") == "ascending"
    click(browser, f"{head} button")
    values = as_numbers(column(browser, 1))
    assert values == sorted(values, reverse=True)
    assert element.get_attribute("aria-sort") == "descending"
    click(browser, "th[data-column=r_hat] button")
    assert element.get_attribute("aria-sort") is None
    values = as_numbers(column(browser, 9))
    assert values == sorted(values, reverse=True)  # the worst R-hat first
    click(browser, "#worst")
    assert browser.find_elements("css selector", "th[aria-sort]") == []
    assert names(browser)[0] == "mu"


def test_names_sort_as_people_count(visit):
    browser = visit("healthy")
    click(browser, "th[data-column=name] button")
    assert names(browser) == [f"theta[{i}]" for i in range(12)]


def test_filter_and_show_all(visit):
    browser = visit("many")
    assert browser.find_element("id", "shown").text == "100 of 251 rows"
    click(browser, "#more")
    assert len(names(browser)) == 251
    box = browser.find_element("id", "filter")
    box.send_keys("THETA[24")
    assert sorted(names(browser)) == sorted([f"theta[{i}]" for i in [24, *range(240, 250)]])
    assert browser.find_element("id", "shown").text == "11 rows"
    box.send_keys(" nothing like it")
    assert names(browser) == []


def test_keyboard_alone_reaches_and_sorts(visit):
    from selenium.webdriver.common.keys import Keys

    browser = visit("healthy")
    active = browser.switch_to.active_element
    seen = []
    for _ in range(80):
        active.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        seen.append(active.get_attribute("id") or active.text or active.tag_name)
        if "bulk ESS" in active.text and active.tag_name == "button":
            break
    assert seen[0] == "Skip to the verdict"
    assert {"theme", "filter", "worst"} <= set(seen)
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    active.send_keys(Keys.ENTER)
    values = as_numbers(column(browser, 7))
    assert values == sorted(values)
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    values = as_numbers(column(browser, 7))
    assert values == sorted(values, reverse=True)


def test_dark_follows_the_system_and_the_button(visit):
    browser = visit("healthy")
    light = background(browser)
    assert min(light) > 200
    click(browser, "#theme")
    dark = background(browser)
    assert max(dark) < 60
    ink = browser.execute_script(
        "return getComputedStyle(document.querySelector('figure svg .label')).fill"
    )
    assert min(rgb(ink)) > 180
    click(browser, "#theme")
    assert background(browser) == light
    browser = visit("healthy", scheme="dark")
    assert background(browser) == dark
    assert browser.find_element("id", "theme").text == "Light"
    click(browser, "#theme")
    assert background(browser) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible(visit, scheme):
    """Every color that carries text has the contrast that WCAG 2.2 asks for (4.5 : 1)."""
    browser = visit("wicked", scheme=scheme)
    pairs = browser.execute_script(
        """
        const probe = document.body.appendChild(document.createElement("span"));
        const value = (name) => {
          probe.style.color = `var(--${name})`;
          return getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
        };
        const inks = ["ink", "muted", "link", "ok", "problem", "warning", "note"];
        const found = {};
        for (const ink of inks)
          for (const paper of ["paper", "sheet"])
            found[`${ink} on ${paper}`] = [value(ink), value(paper)];
        for (const kind of ["ok", "problem", "warning", "note"])
          for (const ink of [kind, "ink", "muted"])
            found[`${ink} on ${kind}-tint`] = [value(ink), value(`${kind}-tint`)];
        probe.remove();
        return found;
        """
    )

    def luminance(color):
        parts = np.array(color) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for name, (ink, paper) in pairs.items():
        low, high = sorted([luminance(ink), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


@pytest.mark.parametrize("name", ["healthy", "wicked", "many"])
def test_a_phone_never_scrolls_sideways(visit, name):
    browser = visit(name, width=PHONE)
    assert browser.execute_script("return innerWidth") == PHONE
    assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE
    wide = (
        "return [...document.querySelectorAll('.scroll')].every(e => e.scrollWidth > e.clientWidth)"
    )
    assert browser.execute_script(wide)  # the table scrolls inside its box
    small = (
        "return Math.min(...[...document.querySelectorAll('figure svg')]"
        ".map(e => e.getBoundingClientRect().width))"
    )
    assert browser.execute_script(small) > 250


def test_paper_shows_everything(visit):
    browser = visit("many", media="print", scheme="dark")
    assert background(browser) == (0, 0, 0, 0)  # transparent: paper is white by itself
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    assert max(rgb(ink)) < 60
    hidden = "return ['#theme', '.tools', '#more'].map(s => document.querySelector(s).offsetHeight)"
    assert browser.execute_script(hidden) == [0, 0, 0]
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert len(names(browser)) == 251
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(names(browser)) == 100
    chips = (
        "return [...document.querySelectorAll('details .chip')].every(e => e.offsetHeight > 0 && "
        "e.checkVisibility())"
    )
    assert browser.execute_script(chips)


def test_copy_takes_the_code(visit):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = visit("healthy")
    click(browser, ".copy button")

    def told(browser):  # once the clipboard has answered
        return browser.find_element("css selector", ".copy button").text in {"Copied", "Selected"}

    assert WebDriverWait(browser, 10, poll_frequency=0.05).until(told)
    chosen = browser.execute_script("return getSelection().toString()")
    assert chosen.startswith("import samplekit as sk")


def test_without_scripts_the_worst_rows_are_there(browser, visit):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        visit("many")
        rows = browser.find_elements("css selector", "#scalars tbody tr")
        assert len(rows) == 100
        assert rows[0].text.partition(" ")[0].endswith("mu")
        assert "the 100 worst are shown" in browser.find_element("tag name", "noscript").text
        assert not browser.find_element("id", "theme").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
