"""The built site, looked at as its readers do: links followed, pages opened in a browser, wide and narrow.

Runs where `DASP_SITE` names the folder of a built site (`make site-test`), with a Chromium and its driver
from the system's packages. Pictures of every page are left in build/screenshots.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE = Path(os.environ.get("DASP_SITE") or ROOT / "no-site").resolve()
SCREENSHOTS = ROOT / "build" / "screenshots"
NARROW, WIDE = 400, 1400
TALLEST = 5000
"""Pixels of a page that a picture keeps."""

PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if "_static" not in path.parts)

pytestmark = pytest.mark.skipif("DASP_SITE" not in os.environ, reason="no site; make site-test builds one")


# ---- links -------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The links, images and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.files: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors.update(name for key in ("id", "name") if (name := found.get(key)))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        wanted = {"img": "src", "script": "src", "link": "href", "source": "src"}.get(tag)
        if wanted and found.get(wanted):
            self.files.append(found[wanted] or "")


@functools.cache
def parsed(page: str) -> Links:
    """What a page links to."""
    return Links((SITE / page).read_text(encoding="utf-8"))


def is_local(link: str) -> bool:
    """Whether a link leads to this site."""
    return not urlsplit(link).scheme and not link.startswith("//")


def target(page: str, link: str) -> tuple[Path, str]:
    """The file, and the anchor in it, that a local link of a page leads to."""
    path, anchor = urldefrag(link)
    place = (SITE / page).parent / unquote(urlsplit(path).path) if path else SITE / page
    return place.resolve(), unquote(anchor)


@pytest.mark.parametrize("page", PAGES)
def test_every_local_link_leads_somewhere(page: str) -> None:
    broken = []
    for link in [*parsed(page).links, *parsed(page).files]:
        if not is_local(link):
            continue
        file, anchor = target(page, link)
        if not file.is_file():
            broken.append(link)
        elif anchor and file.suffix == ".html" and file.is_relative_to(SITE):
            broken += [link] if anchor not in parsed(str(file.relative_to(SITE))).anchors else []
    assert not broken


def test_no_page_loads_anything_from_elsewhere() -> None:
    assert {file for page in PAGES for file in parsed(page).files if not is_local(file)} == set()


def test_every_page_is_two_clicks_from_the_first() -> None:
    reached = {"index.html"}
    for _ in range(2):
        reached |= {
            str(file.relative_to(SITE))
            for page in reached
            for link in parsed(page).links
            if is_local(link) and (file := target(page, link)[0]).suffix == ".html"
        }
    # Sphinx makes these two beside the pages: a search box leads to one, the index of names to the other.
    assert set(PAGES) - reached <= {"search.html", "genindex.html"}


EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_ran_in_time_and_drew_something(example: Path) -> None:
    text = (SITE / "gallery" / f"{example.stem}.html").read_text(encoding="utf-8")
    minutes, seconds = re.search(r"\((\d+) minutes ([\d.]+) seconds\)", text).groups()  # type: ignore[union-attr]
    assert 60 * int(minutes) + float(seconds) < 30
    assert any("sphx_glr_" in file for file in parsed(f"gallery/{example.stem}.html").files)


def test_every_public_name_has_its_page() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^   ([\w.]+)$", text, flags=re.MULTILINE)
    made = sorted(path.stem for path in (SITE / "api").glob("*.html"))
    assert len(listed) == len(made) > 60
    for name in made:
        described = re.search(r"<dd>\s*<p>(.+?)</p>", (SITE / "api" / f"{name}.html").read_text("utf-8"))
        assert described, name


# ---- a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, served to this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium that reaches this machine alone."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def look(browser: Any, url: str, width: int, name: str) -> dict[str, Any]:
    """Open a page at a width, keep a picture, and say what is wrong with it."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser")
    browser.get(url)
    browser.execute_async_script(
        "const done = arguments[0]; for (const i of document.images) i.loading = 'eager';"
        "Promise.all([...document.images].map(i => i.decode().catch(() => 0))).then(() => done());"
    )
    found: dict[str, Any] = browser.execute_script(
        "const wide = [...document.querySelectorAll('main *, body > *')].filter(e => "
        "  e.getBoundingClientRect().right > innerWidth + 1 && getComputedStyle(e).position != 'fixed');"
        "return {missing: [...document.images].filter(i => !i.naturalWidth).map(i => i.src),"
        "  width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,"
        "  wide: wide.slice(0, 3).map(e => e.outerHTML.slice(0, 120))}"
    )
    found["errors"] = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    clip = {"x": 0, "y": 0, "width": width, "height": min(found["height"], TALLEST), "scale": 1}
    picture = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"{name}-{width}.png").write_bytes(base64.b64decode(picture["data"]))
    return found


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_read(browser: Any, address: str, page: str, width: int) -> None:
    name = page.removesuffix(".html").replace("/", "-")
    found = look(browser, f"{address}/{page}", width, name)
    assert found["errors"] == []
    assert found["missing"] == []
    assert found["width"] <= width, found["wide"]


@pytest.mark.parametrize(
    ("words", "page"),
    [("transpose", "shapes.html"), ("multigrid", "faster.html"), ("break-even", "pays.html")],
)
def test_a_search_finds_the_page(browser: Any, address: str, words: str, page: str) -> None:
    browser.get(f"{address}/search.html?q={quote(words)}")
    until = time.monotonic() + 30
    found: list[str] = []
    while not any(page in link for link in found) and time.monotonic() < until:
        time.sleep(0.1)
        found = browser.execute_script(
            "return [...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))"
        )
    assert any(page in link for link in found)


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("matrix", ["fem3:12", "circuit:20000", "lp:200:900"])
def test_the_page_of_dasp_info_can_be_read(browser: Any, tmp_path: Path, matrix: str, width: int) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "dasp", "info", matrix, "--device", "cpu", "--html", str(page)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    found = look(browser, page.as_uri(), width, f"info-{matrix.replace(':', '-')}")
    assert found["errors"] == []
    assert found["missing"] == []
    assert found["width"] <= width, found["wide"]
