"""A headless Chromium, driven over a pipe: enough to load a page, press keys and see what went wrong.

Speaks the DevTools protocol over file descriptors (`--remote-debugging-pipe`), so it needs no package, port or driver.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from pathlib import Path

from tests.patience import FAILS_AFTER_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "End": ("End", 35, ""),
}


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. `complaints` gathers uncaught errors, console errors, policy violations and dialogs."""

    def __init__(self, *, width=1280, height=900, dark=False, is_phone=False, timeout_s=FAILS_AFTER_S):
        self.complaints: list[str] = []
        self._timeout_s = timeout_s
        self._allowed = "file:"
        self._number = 0
        self._buffer = b""
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._start()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def _start(self):
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-dev-shm-usage"
        flags += f" --disable-background-networking --remote-debugging-pipe --user-data-dir={self._folder.name}"
        # The browser reads commands from descriptor 3 and answers on 4.
        command = f'exec "$0" {flags} 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, find_browser()],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._read)
        self._folder.cleanup()

    def open(self, page: Path | str, address=""):
        """Load a file, or a page that this machine serves, and wait until its scripts have run."""
        url = page.resolve().as_uri() if isinstance(page, Path) else page
        self._allowed = "file:" if isinstance(page, Path) else page
        self.call("Page.navigate", url="about:blank")  # or a new address in the same file would not load it anew
        self.call("Page.navigate", url=url + address)
        self.wait("document.readyState === 'complete' && document.querySelector('#main')?.childElementCount > 0")

    def go(self, address: str):
        self.run(f"location.hash = {json.dumps(address)}")
        self.wait(f"location.hash === {json.dumps(address)}")

    def run(self, expression: str):
        """Value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def wait(self, expression: str):
        end = time.monotonic() + self._timeout_s
        while not self.run(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {expression}; complaints: {self.complaints}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector: str):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, *keys: str):
        for key in keys:
            name, code, text = KEYS.get(key, (key, ord(key[0].upper()), key))
            what = {"key": name, "windowsVirtualKeyCode": code} | ({"text": text} if text else {})
            self.call("Input.dispatchKeyEvent", type="keyDown", **what)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, full=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(b64decode(shot["data"]))

    def call(self, method: str, **parameters):
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, *, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self):
        end = time.monotonic() + self._timeout_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, data = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(data["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(data["args"]))
        elif method == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.complaints.append(data["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {data['message']}")
        elif method == "Network.requestWillBeSent" and not data["request"]["url"].startswith(self._allowed):
            self.complaints.append(f"request: {data['request']['url']}")
