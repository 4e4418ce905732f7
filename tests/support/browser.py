"""A real Chromium without a screen and without a network, for the tests of the HTML page."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

__all__ = ["Browser", "browser_or_skip"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_DRIVER = "chromedriver"
_HEIGHT = 1400


class Browser:
    """A tab of the browser.

    Args:
        driver: what drives it.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver
        self._command("Network.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._command("Network.emulateNetworkConditions", **offline)

    def open(self, page: Path, *, width: int = 1600, dark: bool = False) -> None:
        """Load a file in a window of so many pixels, and forget what was logged before."""
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=_HEIGHT, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[scheme])
        self._driver.get("about:blank")
        for log in ("browser", "performance"):
            self._log(log)
        self._driver.get(page.as_uri())
        self._after_drawing()

    @property
    def title(self) -> str:
        """The title of the page."""
        return self._driver.title

    @property
    def console(self) -> list[str]:
        """What the page has written to the console since the last look, errors included."""
        return [str(entry["message"]) for entry in self._log("browser")]

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for since the last look."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    @property
    def accessible_nodes(self) -> list[dict[str, Any]]:
        """The nodes that assistive technology sees."""
        nodes: list[dict[str, Any]] = self._command("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node["ignored"]]

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return its value."""
        return self._driver.execute_script(script, *arguments)

    def run_async(self, script: str) -> Any:
        """Run a script whose last argument takes the value."""
        return self._driver.execute_async_script(script)

    def find(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return self.find(selector).text

    def texts(self, selector: str) -> list[str]:
        """Return the visible text of each element."""
        return [found.text for found in self._driver.find_elements(By.CSS_SELECTOR, selector)]

    def label(self, selector: str) -> str:
        """Return what a screen reader calls an element by its ``aria-label``; empty without one."""
        return self.find(selector).get_attribute("aria-label") or ""

    def click(self, selector: str) -> None:
        """Click an element in its middle."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self._after_drawing()

    def click_at(self, selector: str, x: float, y: float) -> None:
        """Click a point, counted in pixels from an element's upper left corner."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        self._after_drawing()
        offset = (round(x - element.size["width"] / 2), round(y - element.size["height"] / 2))
        ActionChains(self._driver).move_to_element_with_offset(element, *offset).click().perform()
        self._after_drawing()

    def type(self, selector: str, keys: str) -> None:
        """Type into an element, in place of what it holds."""
        element = self.find(selector)
        if element.tag_name == "input":
            element.clear()
        element.send_keys(keys)
        self._after_drawing()

    def choose(self, selector: str, option: str) -> None:
        """Choose an option of a list, as its reader would."""
        for found in self.find(selector).find_elements(By.TAG_NAME, "option"):
            if found.text == option:
                found.click()
                self._after_drawing()
                return
        raise AssertionError(f"{selector} has no option {option!r}")

    def pixels(self, selector: str) -> int:
        """Return how many different colours a canvas shows."""
        script = """
            const canvas = document.querySelector(arguments[0]);
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
        """
        return int(self.run(script, selector))

    def _after_drawing(self) -> None:
        """Wait for two frames: what an event asked to be drawn is drawn then."""
        self.run_async("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")

    def _log(self, name: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._driver.get_log(name)  # type: ignore[no-untyped-call] # selenium's gap
        return entries

    def _command(self, name: str, **arguments: Any) -> Any:
        return self._driver.execute_cdp_cmd(name, arguments)


@contextmanager
def browser_or_skip() -> Iterator[Browser]:
    """Run a browser for the length of the block.

    Without Chromium and its driver the test is skipped, or fails where ``RUNSPAN_REQUIRE_STACK=1`` says that they must
    be there.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    driver = shutil.which(_DRIVER)
    if program is None or driver is None:
        reason = f"there is no Chromium with its driver: {' or '.join(_NAMES)}, and {_DRIVER}, are looked for on PATH"
        if os.environ.get("RUNSPAN_REQUIRE_STACK") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="runspan-browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--disable-extensions"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={profile}")
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium's own does not work for root
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        started = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield Browser(started)
        finally:
            started.quit()
