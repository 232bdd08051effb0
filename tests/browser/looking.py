"""A page of a browser, and all that it says and asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.*",
]
PATIENCE_MS = 30_000
SHOTS = Path(os.environ.get("VIIWORK_SCREENSHOTS") or Path(__file__).parents[2] / ".run" / "screenshots")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Screen:
    """One page."""

    def __init__(self, page: Any, base: str, shots: Path) -> None:
        self.page, self.base, self._shots = page, base, shots
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.type}: {message.text}")

    @classmethod
    @contextmanager
    def open(cls, browser: Any, base: str, shots: Path, **context: Any) -> Iterator[Screen]:
        """A page in a profile of its own."""
        made = browser.new_context(**{"viewport": DESK, "color_scheme": "light", "service_workers": "block", **context})
        try:
            yield cls(made.new_page(), base, shots)
        finally:
            made.close()

    def go(self, path: str) -> Any:
        self.page.goto(self.base + path)
        return self.page

    def until(self, script: str, *args: Any) -> None:
        """Wait until an expression of the page is true."""
        self.page.wait_for_function(script, arg=list(args), timeout=PATIENCE_MS)

    def text(self, where: str) -> str:
        return str(self.page.locator(where).inner_text())

    def shoot(self, name: str) -> None:
        """Keep what the page looks like."""
        self._shots.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self._shots / f"{name}.png", full_page=True)

    def check(self, allowed: Callable[[str], bool] = lambda _: False) -> None:
        """Nothing was complained of, and nobody but the node was asked."""
        assert not [one for one in self.complaints if not allowed(one)]
        assert {urlsplit(url).netloc for url in self.asked if not url.startswith("data:")} <= {
            urlsplit(self.base).netloc
        }
