"""Headless Chromium, driven through a pipe in the DevTools protocol; it needs no further package and opens no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
_SWITCHES = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars")


def installed() -> str | None:
    """Path of a browser of the Chromium family; None if none is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One open page, with the addresses that it requested and its errors and warnings."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._last, self._buffer, self._loaded = send, receive, 0, b"", False
        self.session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol; return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._last:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def open(self, file: Path, fragment: str = "") -> None:
        """Load a file and wait until it is loaded completely."""
        for address in ("about:blank", file.as_uri() + fragment):  # a change of the fragment alone loads nothing
            self._loaded = False
            self.call("Page.navigate", url=address)
            while not self._loaded:
                self._read()

    def evaluate(self, script: str) -> Any:
        """Value of a script expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=codes[key],
            )

    def click(self, selector: str) -> None:
        """Scroll to an element, wait until it stays where it is (tables draw their rows anew after they were scrolled), and click
        on its centre."""
        x, y = self.evaluate(
            "(async () => { let before = ''; for (;;) {"
            f"const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center', inline: 'center'});"
            "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));"
            "const box = found.getBoundingClientRect(), at = [box.x + box.width / 2, box.y + box.height / 2];"
            "if (found.isConnected && before === String(at)) return at; before = String(at); } })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def size(self, width: int, height: int, *, scheme: str = "light", script: bool = True) -> None:
        """Set the window's size in pixels, the preferred colour scheme, and whether scripts run."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write the visible part, or the whole page, as a PNG file."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser has gone"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(said["args"]))


@contextmanager
def browser(binary: str, profile: Path) -> Iterator[Page]:
    """Page of a new browser, which ends with the context."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (their_in, their_out)]  # leaves 3 and 4 free

    def pipes() -> None:  # the protocol's pipes are the descriptors 3 and 4
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    command = [binary, *_SWITCHES, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    for end in (*ends, their_in, their_out):
        os.close(end)
    try:
        page = Page(our_out, our_in)
        targets = page.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        yield page
        page.session = None
        with suppress(AssertionError):
            page.call("Browser.close")
    finally:
        os.close(our_out)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_in)


def ready(page: Page) -> None:
    """Wait until the tables of a page of results are built and the plot, which moves what is below it, is loaded."""
    done = "document.body.dataset.ready && [...document.images].every(img => img.complete)"
    page.evaluate(f"new Promise(done => {{ const look = () => {done} ? done() : setTimeout(look, 10); look(); }})")
